package cluster

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// TopicID tells apart topics that had the same name at different times.
type TopicID = [16]byte

// FormatTopicID writes an id as Kafka does: base64 for URLs, 22 characters.
func FormatTopicID(id TopicID) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// ParseTopicID reads what [FormatTopicID] writes.
func ParseTopicID(s string) (id TopicID, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(raw) != len(id) {
		return id, fmt.Errorf("topic id %q is not 16 bytes in URL base64", s)
	}
	return TopicID(raw), nil
}

// Internal topics, which only the brokers themselves write.
const (
	// OffsetsTopic holds committed offsets and the state of groups.
	OffsetsTopic = "__consumer_offsets"
	// TransactionsTopic holds the state of transactions.
	TransactionsTopic = "__transaction_state"
)

// IsInternal tells whether a topic is one of the brokers' own.
func IsInternal(name string) bool { return name == OffsetsTopic || name == TransactionsTopic }

// AllBrokers as the name of a broker stands for every one of them.
const AllBrokers = ""

// NoLeader as a partition's leader says that it has none.
const NoLeader int32 = -1

// Broker is a live member of the cluster.
type Broker struct {
	ID    int32
	Host  string
	Port  int32
	Rack  string // empty: none
	Epoch int64  // of its registration: another one is another life of the broker
	// ShuttingDown says that it has asked to stop: it is not given anything to lead.
	ShuttingDown bool
	// Clean, Lost and Replaced are what it registered of its last stop and of its
	// disk; see [Registration]. Only the controller knows them.
	Clean, Lost, Replaced bool
	// Endpoints are where clients reach it, by the name of the listener that
	// they use; Host and Port are the first one's. Nil means that there are no others.
	Endpoints []Endpoint
}

// Endpoint is the address that the clients of one listener are told.
type Endpoint struct {
	Listener string
	Host     string
	Port     int32
}

// At returns the broker's address for the clients of a listener. Of a listener
// that it does not have, it is that of the first.
func (b Broker) At(listener string) (host string, port int32) {
	for _, e := range b.Endpoints {
		if e.Listener == listener {
			return e.Host, e.Port
		}
	}
	return b.Host, b.Port
}

// Partition is what the cluster knows of one partition.
type Partition struct {
	Leader         int32 // NoLeader: none
	LeaderEpoch    int32
	PartitionEpoch int32 // the version of its state in the store
	// Replicas are in order of preference as leader. While they are being
	// reassigned they are all that are and all that shall be.
	Replicas []int32
	// ISR are the in-sync replicas, with the leader among them. Without a leader
	// they are those that may lead once they are back. It is empty if all of them
	// came back with another disk: then only an unclean election helps.
	ISR []int32
	// Adding and Removing are the replicas that a reassignment under way makes
	// and gives up (KIP-455); nil without one.
	Adding, Removing []int32
	// Offline are the replicas whose disk has failed, on brokers that are live.
	Offline []int32
}

// Equal tells whether two states are the same.
func (p Partition) Equal(q Partition) bool {
	return p.Leader == q.Leader && p.LeaderEpoch == q.LeaderEpoch && p.PartitionEpoch == q.PartitionEpoch &&
		slices.Equal(p.Replicas, q.Replicas) && slices.Equal(p.ISR, q.ISR) &&
		slices.Equal(p.Adding, q.Adding) && slices.Equal(p.Removing, q.Removing) && slices.Equal(p.Offline, q.Offline)
}

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// Topic is immutable, with all that it refers to.
type Topic struct {
	Name       string
	ID         TopicID
	Partitions []Partition
	// Config has the topic's own settings; what is not there has the broker's default.
	Config   map[string]string
	Internal bool
}

// Image is an immutable picture of the cluster. All its methods may be called
// on a nil *Image, which is a cluster without brokers and topics.
type Image struct {
	// ClusterID is what clients see as the cluster's identity.
	ClusterID string
	// ControllerID is the broker that holds the controller, -1 if none.
	ControllerID int32
	// ControllerEpoch counts the elections.
	ControllerEpoch int32
	// Brokers are sorted by ID.
	Brokers []Broker

	// brokerConfigs are the settings made while running, by broker; see BrokerConfig.
	brokerConfigs map[string]map[string]string

	// The first two indexes hold the same topics; the third those that can
	// collide with another one, see metricName.
	hashes   *imageHashes
	byName   *trie[string, *Topic]
	byID     *trie[TopicID, *Topic]
	byMetric *trie[string, *Topic]
	count    int

	sorted     sync.Once
	sortedList []*Topic
}

// imageHashes is shared by all versions of an image, so that they can be compared.
type imageHashes struct {
	name trieHash[string]
	id   trieHash[TopicID]
}

// NewImage returns an image without topics.
func NewImage(clusterID string, brokers []Broker) *Image {
	return &Image{
		ClusterID:    clusterID,
		ControllerID: -1,
		Brokers:      brokers,
		hashes:       &imageHashes{name: newTrieHash[string](), id: newTrieHash[TopicID]()},
	}
}

// Topic returns the topic of a name, nil if there is none.
func (im *Image) Topic(name string) *Topic {
	if im == nil {
		return nil
	}
	t, _ := im.byName.get(im.hashes.name, name)
	return t
}

// colliding returns the topic that another name would become the same as in a
// metric's name, nil if there is none.
func (im *Image) colliding(name string) *Topic {
	m, ok := metricName(name)
	if im == nil || !ok {
		return nil
	}
	if t, _ := im.byMetric.get(im.hashes.name, m); t != nil && t.Name != name {
		return t
	}
	return nil
}

// TopicByID returns the topic of an id, nil if there is none.
func (im *Image) TopicByID(id TopicID) *Topic {
	if im == nil {
		return nil
	}
	t, _ := im.byID.get(im.hashes.id, id)
	return t
}

// TopicCount is the number of topics.
func (im *Image) TopicCount() int {
	if im == nil {
		return 0
	}
	return im.count
}

// Topics returns all topics sorted by name. The caller must not change the slice.
func (im *Image) Topics() []*Topic {
	if im == nil {
		return nil
	}
	im.sorted.Do(func() {
		list := make([]*Topic, 0, im.count)
		im.byName.each(func(_ string, t *Topic) { list = append(list, t) })
		slices.SortFunc(list, func(a, b *Topic) int { return compareNames(a.Name, b.Name) })
		im.sortedList = list
	})
	return im.sortedList
}

func compareNames(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Broker returns the live broker of an id.
func (im *Image) Broker(id int32) (Broker, bool) {
	if im == nil {
		return Broker{}, false
	}
	for _, b := range im.Brokers {
		if b.ID == id {
			return b, true
		}
	}
	return Broker{}, false
}

// Partition returns one partition of a topic by name.
func (im *Image) Partition(topic string, partition int32) (Partition, bool) {
	t := im.Topic(topic)
	if t == nil || partition < 0 || int(partition) >= len(t.Partitions) {
		return Partition{}, false
	}
	return t.Partitions[partition], true
}

// With returns an image in which t takes the place of the topic of its name.
// It costs O(log n) in the number of topics.
func (im *Image) With(t *Topic) *Image {
	out := im.copied()
	if old := im.Topic(t.Name); old != nil {
		out.byID = out.byID.without(out.hashes.id, old.ID)
		out.count--
	}
	out.byName = out.byName.with(out.hashes.name, t.Name, t)
	out.byID = out.byID.with(out.hashes.id, t.ID, t)
	if m, ok := metricName(t.Name); ok {
		out.byMetric = out.byMetric.with(out.hashes.name, m, t)
	}
	out.count++
	return out
}

// Without returns an image without the topic of that name. It costs O(log n).
func (im *Image) Without(name string) *Image {
	old := im.Topic(name)
	if old == nil {
		return im
	}
	out := im.copied()
	out.byName = out.byName.without(out.hashes.name, name)
	out.byID = out.byID.without(out.hashes.id, old.ID)
	if m, ok := metricName(name); ok {
		out.byMetric = out.byMetric.without(out.hashes.name, m)
	}
	out.count--
	return out
}

// WithBrokers returns an image with other brokers and controller.
func (im *Image) WithBrokers(brokers []Broker, controllerID, controllerEpoch int32) *Image {
	out := im.copied()
	out.Brokers, out.ControllerID, out.ControllerEpoch = brokers, controllerID, controllerEpoch
	return out
}

// BrokerConfig returns the settings made while running for a broker, by its
// number in decimal, or for [AllBrokers]. The caller must not change them.
func (im *Image) BrokerConfig(broker string) map[string]string {
	if im == nil {
		return nil
	}
	return im.brokerConfigs[broker]
}

// BrokerConfigNames are the brokers that have such settings, sorted.
func (im *Image) BrokerConfigNames() []string {
	if im == nil {
		return nil
	}
	return sortedKeys(im.brokerConfigs)
}

// WithBrokerConfig returns an image with other settings of a broker, none if
// there are none.
func (im *Image) WithBrokerConfig(broker string, config map[string]string) *Image {
	out := im.copied()
	out.brokerConfigs = maps.Clone(im.brokerConfigs)
	if out.brokerConfigs == nil {
		out.brokerConfigs = map[string]map[string]string{}
	}
	if out.brokerConfigs[broker] = config; len(config) == 0 {
		delete(out.brokerConfigs, broker)
	}
	return out
}

func (im *Image) copied() *Image {
	return &Image{
		ClusterID:       im.ClusterID,
		ControllerID:    im.ControllerID,
		ControllerEpoch: im.ControllerEpoch,
		Brokers:         im.Brokers,
		brokerConfigs:   im.brokerConfigs,
		hashes:          im.hashes,
		byName:          im.byName,
		byID:            im.byID,
		byMetric:        im.byMetric,
		count:           im.count,
	}
}

// DiffTopics calls fn for each topic that differs between two images of one
// history: old is nil for a new topic, new is nil for a deleted one. A topic
// that was deleted and made again is reported as one change with two ids. It
// costs time in what differs, not in what there is. Either image may be nil.
func DiffTopics(old, new *Image, fn func(old, new *Topic)) {
	var a, b *trie[string, *Topic]
	if old != nil {
		a = old.byName
	}
	if new != nil {
		b = new.byName
	}
	diffTrie(a, b, func(_ string, was, is *Topic) { fn(was, is) })
}
