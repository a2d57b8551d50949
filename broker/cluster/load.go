package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
)

// readsMax is how many reads of the store are under way at a time: a store
// over the network answers many in the time of one.
const readsMax = 64

// concurrently calls fn for 0 up to n, several at a time, and returns the first error.
func concurrently(n int, fn func(i int) error) error {
	var g errgroup.Group
	g.SetLimit(readsMax)
	for i := range n {
		g.Go(func() error { return fn(i) })
	}
	return g.Wait()
}

// load reads topics and settings into an image of a cluster without brokers.
// deleting are the topics whose deletion has begun; they are left out.
func (c *Controller) load(ctx context.Context, clusterID string, hashes *imageHashes) (im *Image, deleting []string, err error) {
	im = NewImage(clusterID, nil)
	if hashes != nil {
		im.hashes = hashes // so that the two can be compared
	}
	if im, err = c.loadBrokerConfigs(ctx, im); err != nil {
		return nil, nil, err
	}
	// A deletion that began is read first: whichever topic is found after it
	// without one is there.
	if deleting, err = c.store.Children(ctx, deleteTopicsPath); err != nil {
		return nil, nil, err
	}
	names, err := c.store.Children(ctx, topicsPath)
	if err != nil {
		return nil, nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, found := slices.BinarySearch(deleting, name)
		return found
	})
	topics := make([]*Topic, len(names))
	err = concurrently(len(names), func(i int) (err error) {
		topics[i], err = c.loadTopic(ctx, names[i])
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if err := c.loadStates(ctx, topics); err != nil {
		return nil, nil, err
	}
	for _, t := range topics {
		im = im.With(t)
	}
	return im, deleting, nil
}

func (c *Controller) loadClusterID(ctx context.Context) (string, error) {
	data, _, err := c.store.Get(ctx, clusterIDPath)
	if err != nil {
		return "", err
	}
	var id clusterIDNode
	err = parseNode("cluster id", data, &id)
	return id.ID, err
}

func (c *Controller) loadBrokerConfigs(ctx context.Context, im *Image) (*Image, error) {
	names, err := c.store.Children(ctx, brokerConfigsPath)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		data, _, err := c.store.Get(ctx, brokerConfigsPath+"/"+name)
		if err != nil {
			return nil, err
		}
		config, err := parseConfigNode("broker "+name, data)
		if err != nil {
			return nil, err
		}
		if name == allBrokersNode {
			name = AllBrokers
		}
		im = im.WithBrokerConfig(name, config)
	}
	return im, nil
}

// loadTopic reads a topic but not the states of its partitions.
func (c *Controller) loadTopic(ctx context.Context, name string) (*Topic, error) {
	data, _, err := c.store.Get(ctx, topicPath(name))
	if err != nil {
		return nil, fmt.Errorf("load topic %s: %w", name, err)
	}
	t, err := parseTopicNode(name, data)
	if err != nil {
		return nil, err
	}
	data, _, err = c.store.Get(ctx, topicConfigPath(name))
	if err == nil {
		t.Config, err = parseConfigNode("topic "+name, data)
	}
	if err != nil && !errors.Is(err, ErrNoNode) {
		return nil, fmt.Errorf("load topic %s: %w", name, err)
	}
	return t, nil
}

// loadStates reads the states of all partitions. One whose creation was cut
// short has none: its ISR stays nil.
func (c *Controller) loadStates(ctx context.Context, topics []*Topic) error {
	type place struct {
		t *Topic
		p int32
	}
	var places []place
	for _, t := range topics {
		for p := range t.Partitions {
			places = append(places, place{t, int32(p)})
		}
	}
	return concurrently(len(places), func(i int) error {
		t, p := places[i].t, places[i].p
		data, stat, err := c.store.Get(ctx, statePath(t.Name, p))
		if errors.Is(err, ErrNoNode) {
			return nil
		}
		if err == nil {
			err = t.Partitions[p].readState(fmt.Sprintf("%s-%d", t.Name, p), data, stat.Version)
		}
		if err != nil {
			return fmt.Errorf("load topic %s: %w", t.Name, err)
		}
		return nil
	})
}

// loadBrokers reads the registrations, sorted by broker.
func (c *Controller) loadBrokers(ctx context.Context) ([]Broker, error) {
	ids, err := c.store.Children(ctx, brokerIDsPath)
	if err != nil {
		return nil, err
	}
	var out []Broker
	for _, name := range ids {
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read broker registration %q: %w", name, err)
		}
		data, stat, err := c.store.Get(ctx, brokerPath(int32(id)))
		if errors.Is(err, ErrNoNode) {
			continue // gone since; the watch has fired
		}
		if err != nil {
			return nil, err
		}
		b, err := parseBrokerNode(int32(id), data, stat.Created)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b Broker) int { return int(a.ID) - int(b.ID) })
	return out, nil
}

// loadKnown reads which brokers the controllers have dealt with so far.
func (c *Controller) loadKnown(ctx context.Context) (known, error) {
	data, _, err := c.store.Get(ctx, knownBrokersPath)
	if errors.Is(err, ErrNoNode) {
		return known{absent: true, epochs: map[int32]int64{}}, nil
	}
	if err != nil {
		return known{}, err
	}
	return parseKnownNode(data)
}
