package api

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// DescribeConfigs, versions 1 to 4.
//
//	v1  the source of each value, synonyms on request
//	v3  the type of each value, documentation on request

// Property is one setting of this broker.
type Property struct {
	Name string
	Type cluster.ConfigType
	Doc  string
	// Default is nil where another property gives it, as log.retention.hours
	// does for log.retention.ms.
	Default *string
	// Static is what the configuration file or the command line gives, nil for nothing.
	Static *string
	// Secret says that nobody is told the value.
	Secret bool
	// Dynamic says that it can be set while the broker runs.
	Dynamic bool
	// Synonyms are the properties that set the same thing, this one among them,
	// the one that counts most first. Nil means that there is no other.
	Synonyms []string
}

// Values returns the values that the property has, the one in force first.
func (p Property) Values(settings cluster.BrokerSettings) []cluster.ConfigValue {
	names := p.Synonyms
	if names == nil {
		names = []string{p.Name}
	}
	values := settings.Values(names...)
	// As Kafka, which lists a synonym only below a value of the name itself.
	own := slices.IndexFunc(values, func(v cluster.ConfigValue) bool { return v.Name == p.Name })
	if own < 0 {
		own = len(values)
	}
	values = values[own:]
	if p.Default != nil {
		values = append(values, cluster.ConfigValue{Name: p.Name, Value: *p.Default, Source: cluster.SourceDefault})
	}
	return values
}

func (a *API) describeConfigs(_ *server.Request, req *kmsg.DescribeConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for _, asked := range req.Resources {
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = asked.ResourceType, asked.ResourceName
		configs, err := a.resourceConfigs(asked)
		if err != nil {
			out.ErrorCode, out.ErrorMessage = topicError(err)
		}
		for _, c := range configs {
			if asked.ConfigNames != nil && !slices.Contains(asked.ConfigNames, c.Name) {
				continue
			}
			if !req.IncludeSynonyms {
				c.ConfigSynonyms = nil
			}
			if !req.IncludeDocumentation {
				c.Documentation = nil
			}
			out.Configs = append(out.Configs, c)
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

func (a *API) resourceConfigs(asked kmsg.DescribeConfigsRequestResource) ([]kmsg.DescribeConfigsResponseResourceConfig, error) {
	switch asked.ResourceType {
	case kmsg.ConfigResourceTypeTopic:
		if err := cluster.CheckTopicName(asked.ResourceName); err != nil {
			return nil, err
		}
		t := a.Image().Topic(asked.ResourceName)
		if t == nil {
			return nil, fmt.Errorf("%w: %q", cluster.ErrUnknownTopic, asked.ResourceName)
		}
		return a.topicConfigs(t), nil
	case kmsg.ConfigResourceTypeBroker:
		switch asked.ResourceName {
		case cluster.AllBrokers:
			return a.allBrokersConfigs(), nil
		case a.brokerName():
			return a.brokerConfigs(), nil
		}
		return nil, fmt.Errorf("%w: this is broker %d, not %q", cluster.ErrInvalidRequest, a.cfg.BrokerID, asked.ResourceName)
	}
	return nil, fmt.Errorf("%w: settings of a %v are not supported", cluster.ErrInvalidRequest, asked.ResourceType)
}

func (a *API) topicConfigs(t *cluster.Topic) []kmsg.DescribeConfigsResponseResourceConfig {
	broker := a.brokerSettings()
	var out []kmsg.DescribeConfigsResponseResourceConfig
	for _, d := range cluster.TopicConfigs() {
		value, candidates := d.Resolve(t.Config, broker)
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.Value, c.Source = d.Name, &value, kmsg.ConfigSource(candidates[0].Source)
		c.ConfigType, c.Documentation = kmsg.ConfigType(d.Type), &d.Doc
		ofBroker := false
		for _, v := range candidates {
			ofBroker = ofBroker || v.Source != cluster.SourceTopic && v.Source != cluster.SourceDefault
			// As Kafka: of several properties that can give a default, the one
			// that does is named only beside one that is set.
			if v.Source == cluster.SourceDefault && len(d.Synonyms) != 1 && !ofBroker {
				continue
			}
			c.ConfigSynonyms = append(c.ConfigSynonyms, synonym(v))
		}
		out = append(out, c)
	}
	return out
}

func (a *API) brokerConfigs() []kmsg.DescribeConfigsResponseResourceConfig {
	settings := a.brokerSettings()
	var out []kmsg.DescribeConfigsResponseResourceConfig
	for _, p := range a.Properties {
		if c, set := brokerConfig(p, p.Values(settings)); set || !p.DynamicOnly() {
			out = append(out, c)
		}
	}
	return out
}

// allBrokersConfigs are the settings for all brokers: only what is set, and
// only as such.
func (a *API) allBrokersConfigs() []kmsg.DescribeConfigsResponseResourceConfig {
	settings := cluster.BrokerSettings{Default: a.Image().BrokerConfig(cluster.AllBrokers)}
	var out []kmsg.DescribeConfigsResponseResourceConfig
	for _, p := range a.Properties {
		values := settings.Values(p.Name)
		if len(values) == 0 {
			continue
		}
		c, _ := brokerConfig(p, values)
		out = append(out, c)
	}
	return out
}

// DynamicOnly tells whether the property is one that no configuration file has.
func (p Property) DynamicOnly() bool { return p.Dynamic && p.Default == nil && p.Synonyms == nil }

func brokerConfig(p Property, values []cluster.ConfigValue) (c kmsg.DescribeConfigsResponseResourceConfig, set bool) {
	c = kmsg.NewDescribeConfigsResponseResourceConfig()
	c.Name, c.ReadOnly = p.Name, !p.Dynamic
	c.ConfigType, c.Documentation = kmsg.ConfigType(p.Type), &p.Doc
	c.Source = kmsg.ConfigSource(cluster.SourceDefault)
	if len(values) > 0 {
		c.Value, c.Source = &values[0].Value, kmsg.ConfigSource(values[0].Source)
	}
	for _, v := range values {
		s := synonym(v)
		if p.Secret {
			s.Value = nil
		}
		c.ConfigSynonyms = append(c.ConfigSynonyms, s)
	}
	if c.IsSensitive = p.Secret; p.Secret {
		c.Value = nil
	}
	return c, len(values) > 0
}

func synonym(v cluster.ConfigValue) kmsg.DescribeConfigsResponseResourceConfigConfigSynonym {
	s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
	s.Name, s.Value, s.Source = v.Name, &v.Value, kmsg.ConfigSource(v.Source)
	return s
}

// brokerName is this broker as a resource of configuration.
func (a *API) brokerName() string { return strconv.Itoa(int(a.cfg.BrokerID)) }

// brokerSettings are the properties that are set.
func (a *API) brokerSettings() cluster.BrokerSettings {
	im := a.Image()
	out := cluster.BrokerSettings{
		Dynamic: im.BrokerConfig(a.brokerName()),
		Default: im.BrokerConfig(cluster.AllBrokers),
		Static:  map[string]string{},
	}
	for _, p := range a.Properties {
		if p.Static != nil {
			out.Static[p.Name] = *p.Static
		}
	}
	return out
}
