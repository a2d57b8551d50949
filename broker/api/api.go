package api

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
)

// Config has the settings of the request handlers.
type Config struct {
	// BrokerID is this node.
	BrokerID int32
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
	// FetchMaxBytes limits the record bytes of one Fetch response
	// (fetch.max.bytes). Zero means 55 MiB, as in Kafka.
	FetchMaxBytes int32
}

// Deps are what the handlers act on.
type Deps struct {
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Image returns the current picture of the cluster, nil while there is none.
	Image      func() *cluster.Image
	Partitions *replica.Partitions
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
	cfg    Config
	routes [maxKey + 1]route
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
}

// sync adapts a function that returns its answer to a handler.
func sync[R kmsg.Request](fn func(*API, *server.Request, R) kmsg.Response) handler {
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
	a := &API{Deps: deps, cfg: cfg}
	for _, routes := range [][]route{dataRoutes()} {
		for _, rt := range routes {
			a.routes[rt.key] = rt
		}
	}
	return a
}

// dataRoutes are the requests of the data path.
func dataRoutes() []route {
	return nil
}

// errUnsupported closes the connection of a client that sends what was never advertised.
var errUnsupported = errors.New("unsupported request")

// route returns the entry of a request, nil if it is not served in that version.
func (a *API) route(key, version int16) *route {
	if key < 0 || key > maxKey {
		return nil
	}
	rt := &a.routes[key]
	if rt.handle == nil && rt.raw == nil {
		return nil
	}
	if version < rt.min || version > rt.max {
		return nil
	}
	return rt
}

// Handle starts one request.
func (a *API) Handle(r *server.Request) {
	rt := a.route(r.Key, r.Version)
	if rt == nil {
		r.Fail(fmt.Errorf("%w: key %d (%s) version %d", errUnsupported, r.Key, kmsg.NameForKey(r.Key), r.Version))
		return
	}
	if rt.raw != nil {
		rt.raw(a, r)
		return
	}
	req := kmsg.RequestForKey(r.Key)
	req.SetVersion(r.Version)
	if err := req.ReadFrom(r.Body); err != nil {
		r.Fail(fmt.Errorf("decode %s version %d: %w", kmsg.NameForKey(r.Key), r.Version, err))
		return
	}
	rt.handle(a, r, req)
}
