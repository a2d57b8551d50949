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

// Property is one setting of this broker, as it is in force.
type Property struct {
	Name    string
	Type    cluster.ConfigType
	Doc     string
	Default string
	Value   string
	// Set says that the configuration gives the value.
	Set bool
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
		case "": // defaults of the whole cluster, of which there are none
			return nil, nil
		case strconv.Itoa(int(a.cfg.BrokerID)):
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
		for _, v := range candidates {
			// As Kafka, which names a default only where one property gives it.
			if v.Source == cluster.SourceDefault && len(d.Synonyms) != 1 {
				continue
			}
			c.ConfigSynonyms = append(c.ConfigSynonyms, synonym(v.Name, v.Value, v.Source))
		}
		out = append(out, c)
	}
	return out
}

func (a *API) brokerConfigs() []kmsg.DescribeConfigsResponseResourceConfig {
	var out []kmsg.DescribeConfigsResponseResourceConfig
	for _, p := range a.Properties {
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.Value, c.ReadOnly = p.Name, &p.Value, true
		c.ConfigType, c.Documentation = kmsg.ConfigType(p.Type), &p.Doc
		c.Source = kmsg.ConfigSource(cluster.SourceDefault)
		if p.Set {
			c.Source = kmsg.ConfigSource(cluster.SourceBroker)
			c.ConfigSynonyms = append(c.ConfigSynonyms, synonym(p.Name, p.Value, cluster.SourceBroker))
		}
		c.ConfigSynonyms = append(c.ConfigSynonyms, synonym(p.Name, p.Default, cluster.SourceDefault))
		out = append(out, c)
	}
	return out
}

func synonym(name, value string, source cluster.ConfigSource) kmsg.DescribeConfigsResponseResourceConfigConfigSynonym {
	s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
	s.Name, s.Value, s.Source = name, &value, kmsg.ConfigSource(source)
	return s
}

// brokerSettings are the properties that the configuration gives.
func (a *API) brokerSettings() map[string]string {
	out := map[string]string{}
	for _, p := range a.Properties {
		if p.Set {
			out[p.Name] = p.Value
		}
	}
	return out
}
