package api

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
)

// Config has the settings of the request handlers.
type Config struct {
	// BrokerID is this node.
	BrokerID int32
	// InterBrokerListener is the name of the listener on which other brokers are served.
	InterBrokerListener string
	// RackAwareReads sends consumers to an in-sync replica in their rack
	// (replica.selector.class).
	RackAwareReads bool
	// AutoCreateTopics allows Metadata requests to create topics
	// (auto.create.topics.enable).
	AutoCreateTopics bool
	// NumPartitions and DefaultReplicationFactor are for topics that are
	// created without saying (num.partitions, default.replication.factor).
	// Zero means 1.
	NumPartitions            int32
	DefaultReplicationFactor int16
	// OffsetsTopicPartitions is how many partitions the offsets topic is made
	// with (offsets.topic.num.partitions). Zero means 50.
	OffsetsTopicPartitions int32
	// OffsetsTopicReplicationFactor is how many replicas they get, at most one for each live broker
	// (offsets.topic.replication.factor). Zero means 3.
	OffsetsTopicReplicationFactor int16
	// RefuseTopicDeletion is the contrary of delete.topic.enable.
	RefuseTopicDeletion bool
	// FetchMaxBytes limits the record bytes of one Fetch response
	// (fetch.max.bytes). Zero means 55 MiB, as in Kafka.
	FetchMaxBytes int32
	// FetchSessions limits the fetch sessions
	// (max.incremental.fetch.session.cache.slots). Zero means 1,000, less none.
	FetchSessions int
}

// Deps are what the handlers act on.
type Deps struct {
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Image returns the current picture of the cluster, nil while there is none.
	Image      func() *cluster.Image
	Partitions *replica.Partitions
	// Controller makes the offsets topic when the first group asks for its coordinator.
	Controller *cluster.Controller
	// ProducerIDs takes the next block of producer ids: the first, and how many.
	ProducerIDs func(context.Context) (first, count int64, err error)
	// ControllerID is the broker that is the controller as far as this one knows,
	// -1 if none is. Nil means the image's.
	ControllerID func() int32
	// Forward passes requests on to the controller, and Updates takes what it
	// pushes. Nil where this broker is alone.
	Forward Forwarder
	Updates UpdateReceiver
	// LeaderThrottle bounds what throttled followers are given. Nil means no bound.
	LeaderThrottle *replica.Throttle
	// Groups is the group coordinator.
	Groups *group.Coordinator
	// Properties are this broker's settings, for those who ask for them.
	Properties []Property
	// LogDirs are the data directories as they are now.
	LogDirs func() []LogDir
	// FutureLogs are the copies of logs that are being moved to another of them.
	FutureLogs func() []FutureLog
	// MoveLog has a partition's log moved to a data directory that is online (KIP-113);
	// one to where it is cancels a move.
	MoveLog func(p *replica.Partition, dir string) error
	// Offline tells whether a partition of this broker cannot be served because
	// its storage failed. Nil means that none is.
	Offline func(topic string, partition int32) bool
	// Now is the broker's clock. Nil means time.Now.
	Now func() time.Time
	// AfterFunc calls a function after a while, on a goroutine of its own, and
	// returns what prevents it. Nil means time.AfterFunc.
	AfterFunc func(time.Duration, func()) (stop func() bool)
}

// API turns requests into calls and errors into the protocol's codes. It is a
// server.Handler and safe for concurrent use.
type API struct {
	Deps
	cfg     Config
	routes  [maxKey + 1]route
	metrics *metrics

	produces  producePool
	fetches   fetchWaits
	sessions  fetchSessions
	producers producerIDs
	changes   imageChange
	draining  atomic.Bool
	fullDisk  atomic.Int64 // when a full disk was last logged, in ms
	large     sync.Mutex   // held while a large request is decoded and started
}

// maxKey is the largest API key that can have a route.
const maxKey = 127

// handler serves one decoded request. It answers through reply, now or later.
type handler func(*API, *server.Request, kmsg.Request)

// route is one request kind in the versions it is served in.
type route struct {
	key      int16
	min, max int16
	// handle serves a request that kmsg has decoded. The decoded request keeps
	// nothing of the body except byte slices.
	handle handler
	// raw serves a request from its body instead, for the requests where
	// decoding would dominate the cost. One of the two is set.
	raw func(*API, *server.Request)
	// controller says that only the controller can decide it: another broker
	// passes it on.
	controller bool
	// internal says that it is served to brokers only, and not advertised.
	internal bool
	// flexible is the first version with tagged fields; New sets it.
	flexible int16
}

// direct adapts a function that returns its answer to a handler.
func direct[R kmsg.Request](fn func(*API, *server.Request, R) kmsg.Response) handler {
	return func(a *API, r *server.Request, req kmsg.Request) {
		reply(r, fn(a, r, req.(R)))
	}
}

// async adapts a function that answers through reply, now or later, to a handler.
func async[R kmsg.Request](fn func(*API, *server.Request, R)) handler {
	return func(a *API, r *server.Request, req kmsg.Request) { fn(a, r, req.(R)) }
}

// reply answers r with resp. It never blocks and may be called from any goroutine.
func reply(r *server.Request, resp kmsg.Response) {
	resp.SetVersion(r.Version)
	r.Respond(server.Response{
		Parts:    []server.Part{{Bytes: resp.AppendTo(nil)}},
		Flexible: resp.IsFlexible(),
	})
}

// New returns the handlers of all request kinds.
func New(deps Deps, cfg Config) *API {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.AfterFunc == nil {
		deps.AfterFunc = func(d time.Duration, fn func()) func() bool { return time.AfterFunc(d, fn).Stop }
	}
	if cfg.FetchMaxBytes <= 0 {
		cfg.FetchMaxBytes = defaultFetchMaxBytes
	}
	if cfg.FetchSessions == 0 {
		cfg.FetchSessions = defaultFetchSessions
	}
	a := &API{Deps: deps, cfg: cfg, metrics: newMetrics(deps.Registerer)}
	a.sessions.max = cfg.FetchSessions
	kinds := [][]route{dataRoutes(), topicRoutes(), groupRoutes(), adminRoutes()}
	if a.Updates != nil {
		kinds = append(kinds, clusterRoutes())
	}
	for _, routes := range kinds {
		for _, rt := range routes {
			rt.flexible = flexibleFrom(rt.key)
			a.routes[rt.key] = rt
		}
	}
	return a
}

// dataRoutes are the requests of the data path, in the versions of Kafka 4.4.
func dataRoutes() []route {
	return []route{
		{key: keyApiVersions, min: 0, max: 5, handle: async(apiVersions)},
		// Versions 0 to 2 are only advertised: librdkafka before 2.1 takes
		// their absence for a broker that knows no compression.
		{key: keyProduce, min: 0, max: 13, raw: produce},
		{key: keyFetch, min: 4, max: 18, raw: fetchRecords},
		{key: keyListOffsets, min: 1, max: 11, handle: direct(listOffsets)},
		{key: keyOffsetForLeaderEpoch, min: 2, max: 4, handle: direct(offsetForLeaderEpoch)},
		{key: keyInitProducerID, min: 0, max: 5, handle: direct(initProducerID)},
	}
}

// API keys of the data path.
const (
	keyProduce              = 0
	keyFetch                = 1
	keyListOffsets          = 2
	keyApiVersions          = 18
	keyInitProducerID       = 22
	keyOffsetForLeaderEpoch = 23
)

const (
	// otherBytesMax limits every request that carries no records. Decoded, such
	// a request can take thirty times its size, so the large ones, of more than
	// largeBytes, are decoded and started one at a time.
	otherBytesMax = 8 << 20
	largeBytes    = 256 << 10
	// partitionsMax limits the topics, and the partitions, of one Produce or
	// Fetch request.
	partitionsMax = 100_000
	// defaultFetchMaxBytes is Kafka's.
	defaultFetchMaxBytes = 55 << 20
)

// flexibleFrom returns the first flexible version of a request, past all
// versions if there is none.
func flexibleFrom(key int16) int16 {
	req := kmsg.RequestForKey(key)
	for v := int16(0); v <= req.MaxVersion(); v++ {
		if req.SetVersion(v); req.IsFlexible() {
			return v
		}
	}
	return req.MaxVersion() + 1
}

// Name returns the name of a request kind, for metrics and logs.
func Name(key int16) string { return kmsg.NameForKey(key) }

// Flexible tells whether a request's header has tagged fields.
func (a *API) Flexible(key, version int16) bool {
	rt := a.routeOf(key)
	return rt != nil && version >= rt.flexible
}

// Sums tells of which requests the pieces' checksums are wanted.
func Sums(key int16) bool { return key == int16(kmsg.Produce) }

// Check refuses requests that are not served, or too large for what they are,
// from their first bytes.
func (a *API) Check(key, version int16, bytes int) error {
	if _, err := a.route(key, version); err != nil {
		return err
	}
	if key != keyProduce && !a.routes[key].internal && bytes > otherBytesMax {
		return fmt.Errorf("%w: %s of %d bytes, at most %d are allowed", errMalformed, Name(key), bytes, otherBytesMax)
	}
	return nil
}

// routeOf returns the entry of a request kind, nil if it is not served.
func (a *API) routeOf(key int16) *route {
	if key < 0 || key > maxKey {
		return nil
	}
	rt := &a.routes[key]
	if rt.handle == nil && rt.raw == nil {
		return nil
	}
	return rt
}

// route returns the entry of a request. ApiVersions is served in every later
// version too, so that a newer client learns which ones there are.
func (a *API) route(key, version int16) (*route, error) {
	rt := a.routeOf(key)
	if rt == nil || version < rt.min || version > rt.max && key != keyApiVersions {
		return nil, fmt.Errorf("%w: %s (key %d) version %d", errUnsupported, Name(key), key, version)
	}
	return rt, nil
}

// Handle starts one request.
func (a *API) Handle(r *server.Request) {
	rt, err := a.route(r.Key, r.Version)
	switch {
	case err != nil:
		r.Fail(err)
	case r.Version > rt.max:
		apiVersionsFallback(a, r)
	case rt.internal && r.Conn.ListenerName() != a.cfg.InterBrokerListener:
		r.Fail(fmt.Errorf("%w: %s is for brokers, on listener %s", errUnsupported, Name(r.Key), a.cfg.InterBrokerListener))
	case !rt.internal && r.Key != keyApiVersions && !a.knowsCluster():
		r.Fail(fmt.Errorf("%w: this broker has not been told of the cluster yet", errNotReady))
	case rt.controller && a.elsewhere():
		go a.forward(r)
	case rt.raw != nil:
		rt.raw(a, r)
	default:
		a.handle(rt, r)
	}
}

// firstImageWait is how long a client that comes before this broker has been told of
// the cluster waits for that: as long as it waits for an answer. To close its connection
// at once would look like a refusal of its security to some, which give up.
const firstImageWait = 30 * time.Second

// knowsCluster waits until this broker has been told of the cluster; false says that it
// was not in time, or stops. The next request of the connection waits as well.
func (a *API) knowsCluster() bool {
	if a.Image() != nil {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), firstImageWait)
	defer cancel()
	_ = a.awaitImage(ctx, func(im *cluster.Image) bool { return im != nil || a.draining.Load() })
	return a.Image() != nil
}

func (a *API) handle(rt *route, r *server.Request) {
	if len(r.Body) > largeBytes && !rt.internal {
		a.large.Lock()
		defer a.large.Unlock()
	}
	req := kmsg.RequestForKey(r.Key)
	req.SetVersion(r.Version)
	if err := req.ReadFrom(r.Body); err != nil {
		r.Fail(fmt.Errorf("%w: %s version %d: %w", errMalformed, Name(r.Key), r.Version, err))
		return
	}
	rt.handle(a, r, req)
}

// Drain ends the waits for records and for the first news of the cluster, now and from now
// on: each fetch is answered with what there is. Call it before shutting down the server, which waits for
// every answer.
func (a *API) Drain() {
	a.draining.Store(true)
	a.fetches.expireAll()
	a.changes.announce()
}

// find returns the partition that a request names, by id if byID is set, or the
// code that refuses it.
func (a *API) find(name string, id cluster.TopicID, byID bool, partition int32) (*replica.Partition, int16) {
	var p *replica.Partition
	if byID {
		p = a.Partitions.GetByID(id, partition)
	} else {
		p = a.Partitions.Get(name, partition)
	}
	if p != nil {
		return p, 0
	}
	return nil, a.absent(name, id, byID, partition)
}

// absent tells why a partition is not on this node.
func (a *API) absent(name string, id cluster.TopicID, byID bool, partition int32) int16 {
	im := a.Image()
	t := im.Topic(name)
	if byID {
		t = im.TopicByID(id)
	}
	switch {
	case t == nil && byID:
		return kerr.UnknownTopicID.Code
	case t == nil || partition < 0 || int(partition) >= len(t.Partitions):
		return kerr.UnknownTopicOrPartition.Code
	case a.isOffline(t.Name, partition):
		return kerr.KafkaStorageError.Code
	}
	return kerr.NotLeaderForPartition.Code
}

func (a *API) isOffline(topic string, partition int32) bool {
	return a.Offline != nil && a.Offline(topic, partition)
}

// offlineReplicas are the replicas of a partition that cannot be reached: those
// of brokers that are gone, and those whose storage failed.
func (a *API) offlineReplicas(im *cluster.Image, topic string, partition int32, p cluster.Partition) []int32 {
	out := []int32{}
	for _, id := range p.Replicas {
		_, live := im.Broker(id)
		failed := slices.Contains(p.Offline, id) || id == a.cfg.BrokerID && a.isOffline(topic, partition)
		if !live || failed {
			out = append(out, id)
		}
	}
	return out
}

// leaderIn is a partition's leader as clients are told it: none if it is gone
// and no other has been elected yet.
func leaderIn(im *cluster.Image, p cluster.Partition) int32 {
	if _, live := im.Broker(p.Leader); !live {
		return cluster.NoLeader
	}
	return p.Leader
}

// leaderOf returns who leads a partition, as far as this node knows.
func (a *API) leaderOf(name string, id cluster.TopicID, byID bool, partition int32) (leader, epoch int32) {
	im := a.Image()
	t := im.Topic(name)
	if byID {
		t = im.TopicByID(id)
	}
	if t == nil || partition < 0 || int(partition) >= len(t.Partitions) {
		return -1, -1
	}
	return leaderIn(im, t.Partitions[partition]), t.Partitions[partition].LeaderEpoch
}
