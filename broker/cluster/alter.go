package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ConfigKind says whose settings are changed.
type ConfigKind int8

// The kinds of settings.
const (
	KindTopic ConfigKind = iota
	KindBroker
)

// ConfigOp is what is done to one setting, with the protocol's own numbers (KIP-339).
type ConfigOp int8

// The operations on a setting.
const (
	OpSetConfig      ConfigOp = 0
	OpDeleteConfig   ConfigOp = 1 // the default takes its place
	OpAppendConfig   ConfigOp = 2 // adds words to a list
	OpSubtractConfig ConfigOp = 3 // takes words out of a list
)

// ConfigChange changes one setting. Value is nil for a deletion only.
type ConfigChange struct {
	Name  string
	Op    ConfigOp
	Value *string
}

// ConfigAlteration changes the settings of one topic or broker.
type ConfigAlteration struct {
	Kind ConfigKind
	// Name of the topic; number of the broker in decimal, or AllBrokers.
	Name string
	// Replace removes all settings that Changes does not set.
	Replace bool
	Changes []ConfigChange
}

// AlterConfigs changes settings; each topic and broker answers for itself, in
// the order asked. With validateOnly nothing is changed. It returns once the
// settings are durable, this broker has seen them, and the others if they are quick. Errors are
// [ErrUnknownTopic], [*InvalidTopicError], [*InvalidConfigError],
// [ErrInvalidRequest], [ErrNotController] or the store's.
func (c *Controller) AlterConfigs(ctx context.Context, asked []ConfigAlteration, validateOnly bool) []error {
	out := make([]error, len(asked))
	r, err := c.enter(ctx)
	if err != nil {
		return fill(out, fmt.Errorf("change configurations: %w", err))
	}
	type resource struct {
		kind ConfigKind
		name string
	}
	counts := map[resource]int{}
	for _, a := range asked {
		counts[resource{a.Kind, a.Name}]++
	}
	for i, a := range asked {
		switch {
		case counts[resource{a.Kind, a.Name}] > 1:
			out[i] = fmt.Errorf("%w: %q appears more than once in the request", ErrInvalidRequest, a.Name)
		case a.Kind == KindTopic:
			out[i] = c.alterTopic(ctx, r, a, validateOnly)
		default:
			out[i] = c.alterBroker(ctx, r, a, validateOnly)
		}
	}
	done := c.published(r)
	c.leave()
	done.wait(ctx)
	return out
}

func (c *Controller) alterTopic(ctx context.Context, r *term, a ConfigAlteration, validateOnly bool) error {
	if a.Name == "" {
		return fmt.Errorf("%w: the settings of all topics are the brokers'", ErrInvalidRequest)
	}
	if err := CheckTopicName(a.Name); err != nil {
		return err
	}
	if err := c.refresh(ctx, r); err != nil { // an earlier one may have failed
		return err
	}
	im := r.image
	t := im.Topic(a.Name)
	if t == nil {
		return fmt.Errorf("%w: %q", ErrUnknownTopic, a.Name)
	}
	config, err := planConfig(t.Config, a, lookupTopic)
	if err == nil {
		err = checkTogether(config)
	}
	if err != nil || validateOnly || maps.Equal(config, t.Config) {
		return err
	}
	changed := *t
	changed.Config = config
	return c.storeConfig(ctx, r, "topic", a.Name, Set(topicConfigPath(t.Name), configNode(config), AnyVersion), config, im.With(&changed))
}

func (c *Controller) alterBroker(ctx context.Context, r *term, a ConfigAlteration, validateOnly bool) error {
	if err := c.refresh(ctx, r); err != nil { // an earlier one may have failed
		return err
	}
	im := r.image
	was := im.BrokerConfig(a.Name)
	config, err := planConfig(was, a, c.lookupBroker)
	if err != nil {
		// Kafka refuses a broker's setting so, and a topic's by INVALID_CONFIG.
		var bad *InvalidConfigError
		if errors.As(err, &bad) {
			err = fmt.Errorf("%w: %s", ErrInvalidRequest, bad.Error())
		}
		return err
	}
	if validateOnly || maps.Equal(config, was) {
		return nil
	}
	path := brokerConfigPath(a.Name)
	op := Set(path, configNode(config), AnyVersion)
	if _, _, err := c.store.Get(ctx, path); errors.Is(err, ErrNoNode) {
		op = Create(path, configNode(config))
	}
	return c.storeConfig(ctx, r, "broker", a.Name, op, config, im.WithBrokerConfig(a.Name, config))
}

// storeConfig stores a setting, and holds the elections that it allows.
func (c *Controller) storeConfig(ctx context.Context, r *term, what, name string, op Op, config map[string]string, im *Image) error {
	if err := c.commit(ctx, r, im, op); err != nil {
		return fmt.Errorf("change the configuration of %s %q: %w", what, name, err)
	}
	if _, set := config[uncleanElectionConfig]; !set {
		return nil
	}
	none := func(int32) bool { return false }
	if err := c.commit(ctx, r, WithLive(im, im.Brokers, none, c.unclean(im))); err != nil {
		c.log.Warn("an election that a setting allows could not be held; it is with the next change of the brokers", "error", err)
	}
	return nil
}

func lookupTopic(name string) (ConfigDef, error) {
	if d, ok := LookupTopicConfig(name); ok {
		return d, nil
	}
	return ConfigDef{}, CheckTopicConfig(name, "")
}

func (c *Controller) lookupBroker(name string) (ConfigDef, error) {
	for _, d := range c.cfg.BrokerConfigs {
		if d.Name == name {
			return d, nil
		}
	}
	return ConfigDef{}, fmt.Errorf("%w: %s cannot be changed while the broker runs", ErrInvalidRequest, name)
}

// planConfig works out the settings that changes lead to.
func planConfig(was map[string]string, a ConfigAlteration, lookup func(string) (ConfigDef, error)) (map[string]string, error) {
	config := maps.Clone(was)
	if config == nil || a.Replace {
		config = map[string]string{}
	}
	seen := map[string]bool{}
	for _, change := range a.Changes {
		if seen[change.Name] {
			return nil, fmt.Errorf("%w: configuration %s appears more than once", ErrInvalidRequest, change.Name)
		}
		seen[change.Name] = true
		if err := change.apply(config, lookup); err != nil {
			return nil, err
		}
	}
	return config, nil
}

func (ch ConfigChange) apply(config map[string]string, lookup func(string) (ConfigDef, error)) error {
	if ch.Op == OpDeleteConfig {
		delete(config, ch.Name) // what is not there, or not known, needs no deletion
		return nil
	}
	if ch.Value == nil {
		return fmt.Errorf("%w: configuration %s has no value", ErrInvalidRequest, ch.Name)
	}
	d, err := lookup(ch.Name)
	if err != nil {
		return err
	}
	value := *ch.Value
	switch ch.Op {
	case OpSetConfig:
	case OpAppendConfig, OpSubtractConfig:
		if d.Type != ConfigList {
			return &InvalidConfigError{ch.Name, value, "words can be added to and taken from lists only, and it is of type " + d.Type.String()}
		}
		was, set := config[ch.Name]
		if !set {
			was = d.Default
		}
		value = editList(was, value, ch.Op == OpAppendConfig)
	default:
		return fmt.Errorf("%w: unknown operation %d on configuration %s", ErrInvalidRequest, ch.Op, ch.Name)
	}
	if err := d.Check(value); err != nil {
		return err
	}
	config[ch.Name] = value
	return nil
}

// editList adds words that are not there yet, or takes words out.
func editList(list, words string, add bool) string {
	have := SplitList(list)
	for _, w := range SplitList(words) {
		switch i := slices.Index(have, w); {
		case add && i < 0:
			have = append(have, w)
		case !add && i >= 0:
			have = slices.Delete(have, i, i+1)
		}
	}
	return strings.Join(have, ",")
}

// checkTogether refuses settings of a topic that contradict each other.
func checkTogether(config map[string]string) error {
	s := ResolveTopic(config, BrokerSettings{})
	least, most := s.Int("min.compaction.lag.ms"), s.Int("max.compaction.lag.ms")
	if least > most {
		return &InvalidConfigError{"max.compaction.lag.ms", s["max.compaction.lag.ms"],
			fmt.Sprintf("it must not be below min.compaction.lag.ms, which is %d", least)}
	}
	return nil
}
