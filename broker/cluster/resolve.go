package cluster

import (
	"strconv"
	"strings"
)

// ConfigSource says where a value comes from, with the protocol's own numbers.
type ConfigSource int8

// The sources of values (DescribeConfigs, KIP-226).
const (
	SourceTopic          ConfigSource = 1 // the topic's own
	SourceDynamicBroker  ConfigSource = 2 // set while running, for one broker
	SourceDynamicDefault ConfigSource = 3 // set while running, for all brokers
	SourceBroker         ConfigSource = 4 // the broker's configuration file
	SourceDefault        ConfigSource = 5
)

// ConfigValue is one of the values that a setting could have.
type ConfigValue struct {
	Name   string // of the topic setting, or of the broker's property
	Value  string
	Source ConfigSource
}

// BrokerSettings are the properties of a broker that are set, by where they
// are; what is set while the broker runs counts more than its file.
type BrokerSettings struct {
	Dynamic map[string]string // for this broker, while running
	Default map[string]string // for all brokers, while running
	Static  map[string]string // in its configuration file
}

// Values returns the values that a property has under one of several names, the
// one in force first.
func (s BrokerSettings) Values(names ...string) []ConfigValue {
	var out []ConfigValue
	for _, layer := range []struct {
		set    map[string]string
		source ConfigSource
	}{{s.Dynamic, SourceDynamicBroker}, {s.Default, SourceDynamicDefault}, {s.Static, SourceBroker}} {
		for _, name := range names {
			if v, ok := layer.set[name]; ok {
				out = append(out, ConfigValue{name, v, layer.source})
			}
		}
	}
	return out
}

// Resolve returns the values of a setting, the one in force first: the topic's
// own if it has one, then the broker's properties that are set, then the default.
// The value in force is in the topic setting's unit; the others are as they were given.
func (d ConfigDef) Resolve(topic map[string]string, broker BrokerSettings) (value string, candidates []ConfigValue) {
	if v, ok := topic[d.Name]; ok {
		candidates = append(candidates, ConfigValue{d.Name, v, SourceTopic})
	}
	candidates = append(candidates, broker.Values(d.synonymNames()...)...)
	candidates = append(candidates, d.defaultValue())
	return d.inUnit(candidates[0]), candidates
}

// defaultValue is the default as it is given: by a property, if there is one,
// and of several by the last, the others having none.
func (d ConfigDef) defaultValue() ConfigValue {
	v := ConfigValue{d.Name, d.Default, SourceDefault}
	if n := len(d.Synonyms); n > 0 {
		v.Name = d.Synonyms[n-1].Name
		if n > 1 {
			v.Value = d.Synonyms[n-1].Default
		}
	}
	return v
}

func (d ConfigDef) synonymNames() []string {
	names := make([]string, len(d.Synonyms))
	for i, s := range d.Synonyms {
		names[i] = s.Name
	}
	return names
}

// inUnit returns a candidate's value in the topic setting's unit.
func (d ConfigDef) inUnit(c ConfigValue) string {
	switch c.Source {
	case SourceTopic:
		return c.Value
	case SourceDefault:
		return d.Default
	}
	for _, s := range d.Synonyms {
		if s.Name == c.Name {
			v, _ := s.scale(c.Value)
			return v
		}
	}
	return c.Value
}

// scale turns the property's value into the topic setting's unit. Negative
// values mean something by themselves ("no limit"), in every unit.
func (s Synonym) scale(value string) (string, error) {
	if s.Unit == 1 {
		return value, nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil || n > maxInt64/s.Unit {
		return value, &InvalidConfigError{s.Name, value, "it must be a whole number"}
	}
	if n < 0 {
		return strconv.FormatInt(n, 10), nil
	}
	return strconv.FormatInt(n*s.Unit, 10), nil
}

// CheckTopicDefault checks the value of a broker's property that gives a topic
// setting its default. known is false if name is no such property.
func CheckTopicDefault(name, value string) (known bool, err error) {
	for _, d := range TopicConfigs() {
		for _, s := range d.Synonyms {
			if s.Name != name {
				continue
			}
			scaled, err := s.scale(value)
			if err == nil {
				err = d.Check(scaled)
			}
			if bad, ok := err.(*InvalidConfigError); ok {
				return true, &InvalidConfigError{name, value, bad.Reason}
			}
			return true, err
		}
	}
	return false, nil
}

// TopicSettings are all settings of one topic, as they are in force.
type TopicSettings map[string]string

// ResolveTopic returns the settings of a topic under a broker's properties that are set.
func ResolveTopic(topic map[string]string, broker BrokerSettings) TopicSettings {
	out := TopicSettings{}
	for _, d := range TopicConfigs() {
		out[d.Name], _ = d.Resolve(topic, broker)
	}
	return out
}

// Int returns the value of an integer setting. The values were checked when
// they were stored, so one that is none is a mistake of the program: it reads as 0.
func (s TopicSettings) Int(name string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSpace(s[name]), 10, 64)
	return n
}

// isTrue reads the value of a boolean setting, which was checked when it was stored.
func isTrue(value string) bool { return strings.EqualFold(strings.TrimSpace(value), "true") }

// Has tells whether the list of a setting has a word.
func (s TopicSettings) Has(name, word string) bool {
	for _, w := range SplitList(s[name]) {
		if w == word {
			return true
		}
	}
	return false
}
