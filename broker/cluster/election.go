package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Start registers this broker, takes the office of the controller, completes
// what an earlier controller began, and publishes the first image.
//
// On the embedded store there is nobody else, so an occupied office is an error.
func (c *Controller) Start(ctx context.Context, self Registration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.self = self
	if err := c.ensureTree(ctx, self.ClusterID); err != nil {
		return fmt.Errorf("prepare cluster store: %w", err)
	}
	if err := c.elect(ctx); err != nil {
		return fmt.Errorf("elect controller: %w", err)
	}
	im, err := c.load(ctx)
	if err != nil {
		return fmt.Errorf("load cluster: %w", err)
	}
	if im, err = c.takeOver(ctx, im); err != nil {
		return fmt.Errorf("take over cluster: %w", err)
	}
	c.publish(im)
	return c.finishDeletions(ctx)
}

// ensureTree makes the persistent nodes and checks that the store is that of this cluster.
func (c *Controller) ensureTree(ctx context.Context, clusterID string) error {
	var wanted []Op
	for _, path := range persistentPaths {
		wanted = append(wanted, Create(path, nil))
	}
	wanted = append(wanted,
		Create(clusterIDPath, mustJSON(clusterIDNode{"1", clusterID})),
		Create(controllerEpochPath, []byte("0")))
	ops, err := c.absent(ctx, wanted)
	if err != nil {
		return err
	}
	if len(ops) > 0 {
		if err := c.store.Txn(ctx, ops...); err != nil && !errors.Is(err, ErrNodeExists) {
			return err
		}
	}
	data, _, err := c.store.Get(ctx, clusterIDPath)
	if err != nil {
		return err
	}
	var n clusterIDNode
	if err := parseNode("cluster id", data, &n); err != nil {
		return err
	}
	if n.ID != clusterID {
		return fmt.Errorf("the data directory belongs to cluster %s, the cluster store to %s", clusterID, n.ID)
	}
	return nil
}

// elect registers the broker and takes the office in one transaction with the
// new epoch, so that two candidates cannot both win.
func (c *Controller) elect(ctx context.Context) error {
	data, stat, err := c.store.Get(ctx, controllerEpochPath)
	if err != nil {
		return err
	}
	epoch, err := strconv.ParseInt(string(data), 10, 32)
	if err != nil {
		return fmt.Errorf("read controller epoch %q: %w", data, err)
	}
	now := c.cfg.Now()
	office := mustJSON(controllerNode{Version: 2, BrokerID: c.self.Broker.ID, Timestamp: millis(now), KRaft: -1})
	err = c.store.Txn(ctx,
		CreateEphemeral(brokerPath(c.self.Broker.ID), newBrokerNode(c.self, now)),
		CreateEphemeral(controllerPath, office),
		Set(controllerEpochPath, strconv.AppendInt(nil, epoch+1, 10), stat.Version),
	)
	if err != nil {
		return err
	}
	c.epoch, c.epochVersion = int32(epoch+1), stat.Version+1
	return nil
}

// load reads the whole tree into an image. Topics being deleted are left out.
func (c *Controller) load(ctx context.Context) (*Image, error) {
	brokers, err := c.loadBrokers(ctx)
	if err != nil {
		return nil, err
	}
	data, _, err := c.store.Get(ctx, clusterIDPath)
	if err != nil {
		return nil, err
	}
	var id clusterIDNode
	if err := parseNode("cluster id", data, &id); err != nil {
		return nil, err
	}
	im := NewImage(id.ID, nil).WithBrokers(brokers, c.self.Broker.ID, c.epoch)
	if old := c.image; old != nil {
		im.hashes = old.hashes // so that the two can be compared
	}
	if im, err = c.loadBrokerConfigs(ctx, im); err != nil {
		return nil, err
	}
	names, err := c.store.Children(ctx, topicsPath)
	if err != nil {
		return nil, err
	}
	deleting, err := c.store.Children(ctx, deleteTopicsPath)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, found := slices.BinarySearch(deleting, name); found {
			continue
		}
		t, err := c.loadTopic(ctx, name)
		if err != nil {
			return nil, err
		}
		im = im.With(t)
	}
	return im, nil
}

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
		if err != nil {
			return nil, err
		}
		var n brokerNode
		if err := parseNode("broker registration", data, &n); err != nil {
			return nil, err
		}
		endpoints, err := n.endpoints()
		if err != nil {
			return nil, fmt.Errorf("read broker registration %q: %w", name, err)
		}
		out = append(out, Broker{ID: int32(id), Host: n.Host, Port: n.Port, Rack: n.Rack, Epoch: stat.Created, Endpoints: endpoints})
	}
	slices.SortFunc(out, func(a, b Broker) int { return int(a.ID) - int(b.ID) })
	return out, nil
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
	for p := range t.Partitions {
		data, stat, err := c.store.Get(ctx, statePath(name, int32(p)))
		if errors.Is(err, ErrNoNode) {
			continue // its creation was cut short; takeOver completes it
		}
		if err != nil {
			return nil, fmt.Errorf("load topic %s: %w", name, err)
		}
		if err := t.Partitions[p].readState(fmt.Sprintf("%s-%d", name, p), data, stat.Version); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// takeOver completes creations that were cut short and gives every partition
// whose leader came back from an unclean stop a new leader epoch: what that
// leader lost of its tail must not be mistaken for what it writes next.
func (c *Controller) takeOver(ctx context.Context, im *Image) (*Image, error) {
	var ops []Op
	for _, t := range im.Topics() {
		next, changes, err := c.takeOverTopic(ctx, im, t, !c.self.Clean)
		if err != nil {
			return nil, err
		}
		if len(changes) > 0 {
			im = im.With(next)
			ops = append(ops, changes...)
		}
	}
	if err := c.write(ctx, ops); err != nil {
		return nil, err
	}
	return im, nil
}

func (c *Controller) takeOverTopic(ctx context.Context, im *Image, t *Topic, bumpEpochs bool) (*Topic, []Op, error) {
	ops, err := c.missingNodes(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	next := *t
	next.Partitions = slices.Clone(t.Partitions)
	for i := range next.Partitions {
		p := &next.Partitions[i]
		switch {
		case p.ISR == nil:
			*p = firstState(im, p.Replicas)
			missing, err := c.absent(ctx, createPartitionOps(&next, int32(i), c.epoch))
			if err != nil {
				return nil, nil, err
			}
			ops = append(ops, missing...)
		case bumpEpochs && p.Leader == c.self.Broker.ID:
			version := p.PartitionEpoch
			p.LeaderEpoch++
			p.PartitionEpoch++
			ops = append(ops, Set(statePath(t.Name, int32(i)), stateNode(*p, c.epoch), version))
		}
	}
	return &next, ops, nil
}

// missingNodes are those beside a topic's own node that its creation did not reach.
func (c *Controller) missingNodes(ctx context.Context, t *Topic) ([]Op, error) {
	return c.absent(ctx, []Op{
		Create(topicConfigPath(t.Name), configNode(t.Config)),
		Create(partitionsPath(t.Name), nil),
	})
}

func (c *Controller) absent(ctx context.Context, creates []Op) ([]Op, error) {
	var out []Op
	for _, op := range creates {
		_, _, err := c.store.Get(ctx, op.Path)
		switch {
		case errors.Is(err, ErrNoNode):
			out = append(out, op)
		case err != nil:
			return nil, err
		}
	}
	return out, nil
}

// reload replaces the image after a write whose outcome is in doubt: the store
// knows what became of it.
func (c *Controller) reload(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	im, err := c.load(ctx)
	if err == nil {
		im, err = c.completeCreations(ctx, im)
	}
	if err != nil {
		c.log.Error("cannot read the cluster store back after a failed write", "error", err)
		return
	}
	c.publish(im)
}

// completeCreations is takeOver without new epochs. What cannot be completed
// now is left out of the image, so that no half-made topic is served.
func (c *Controller) completeCreations(ctx context.Context, im *Image) (*Image, error) {
	for _, t := range im.Topics() {
		if !halfMade(t) {
			continue
		}
		next, ops, err := c.takeOverTopic(ctx, im, t, false)
		if err != nil {
			return nil, err
		}
		if err := c.write(ctx, ops); err != nil {
			im = im.Without(t.Name)
			continue
		}
		im = im.With(next)
	}
	return im, nil
}

func halfMade(t *Topic) bool {
	return slices.ContainsFunc(t.Partitions, func(p Partition) bool { return p.ISR == nil })
}

// finishDeletions removes the nodes of topics whose deletion had begun. Their
// directories are gone or going: no image has named them since.
func (c *Controller) finishDeletions(ctx context.Context) error {
	names, err := c.store.Children(ctx, deleteTopicsPath)
	if err != nil {
		return fmt.Errorf("finish deletions: %w", err)
	}
	for _, name := range names {
		if err := c.finishDeletion(ctx, name); err != nil {
			return fmt.Errorf("finish deletion of topic %q: %w", name, err)
		}
	}
	return nil
}

// finishDeletion removes a topic's nodes, children first, and last of all the
// note that it is being deleted. It begins anywhere an earlier one ended.
func (c *Controller) finishDeletion(ctx context.Context, name string) error {
	var ops []Op
	err := c.collect(ctx, topicPath(name), &ops)
	if err != nil {
		return err
	}
	if err := c.collect(ctx, topicConfigPath(name), &ops); err != nil {
		return err
	}
	return c.write(ctx, append(ops, Delete(deleteTopicPath(name), AnyVersion)))
}

// collect appends deletions of path and all below it, if it exists.
func (c *Controller) collect(ctx context.Context, path string, ops *[]Op) error {
	children, err := c.store.Children(ctx, path)
	if errors.Is(err, ErrNoNode) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := c.collect(ctx, path+"/"+child, ops); err != nil {
			return err
		}
	}
	*ops = append(*ops, Delete(path, AnyVersion))
	return nil
}
