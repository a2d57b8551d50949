package agent

import (
	"fmt"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/sluice-io/sluice/pipelines"
)

// topicsMaxDefault bounds the topics that lines name, where nothing else is said.
const topicsMaxDefault = 100

// topicNameShape is what brokers take for a topic's name.
var topicNameShape = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)

// routes are the topics that lines name themselves (topic.name_from). Each is looked for, and made if it is absent, when the first line names
// it; until its partitions are told it is taken to have those that it would be made with. It belongs to the runner's loop.
type routes struct {
	runner *runner
	max    int
	known  map[string]*route
}

type route struct {
	name       string
	partitions atomic.Int32 // 0: not told
}

func newRoutes(r *runner) *routes {
	most := r.pipe.Topic.TopicsMax
	setDefault(&most, topicsMaxDefault)
	return &routes{runner: r, max: most, known: map[string]*route{}}
}

// to returns the topic that a line names, and how many partitions it has. A line that names none, one that cannot be, or one too many goes
// to the pipeline's.
func (x *routes) to(name []byte) (topic string, partitions int32) {
	own := &x.runner.pipe.Topic
	if rt := x.known[string(name)]; rt != nil {
		if n := rt.partitions.Load(); n > 0 {
			return rt.name, n
		}
		return rt.name, x.expected()
	}
	if len(name) == 0 || string(name) == own.Name {
		return own.Name, x.runner.work.topic.Partitions
	}
	if err := x.refuses(string(name)); err != nil {
		x.runner.say(place{kind: "route"}, "lines go to the pipeline's own topic instead of the one they name (topic.name_from)", err)
		return own.Name, x.runner.work.topic.Partitions
	}
	rt := &route{name: string(name)}
	x.known[rt.name] = rt
	x.runner.helpers.Go(func() { x.prepare(rt) })
	return rt.name, x.expected()
}

func (x *routes) expected() int32 {
	if n := x.runner.pipe.Topic.Partitions; n > 0 {
		return n
	}
	return x.runner.work.topic.Partitions
}

func (x *routes) refuses(name string) error {
	switch {
	case !topicNameShape.MatchString(name) || name == "." || name == ".." || pipelines.BrokersOwn(name):
		return fmt.Errorf("%q is no name for a topic", name)
	case len(x.known) >= x.max:
		return fmt.Errorf("%d topics were named since the start, no more are made (topic.topics_max)", len(x.known))
	}
	return nil
}

// prepare finds or makes a topic, however long that takes: what is for it waits in order.
func (x *routes) prepare(rt *route) {
	r := x.runner
	spec := topicSpec(r.pipe)
	spec.Name = rt.name
	for pause := prepareBackoffMin; ; pause = min(pause*2, prepareBackoffMax) {
		topic, err := r.dest.Prepare(r.helping, spec)
		if err == nil {
			rt.partitions.Store(topic.Partitions)
			return
		}
		if r.helping.Err() != nil {
			return
		}
		if pause == prepareBackoffMin {
			r.log.Warn("a topic that lines name cannot be had from the brokers; trying again without end, the pipeline waits", "topic", rt.name, "error", err)
		}
		select {
		case <-r.helping.Done():
			return
		case <-time.After(pause):
		}
	}
}

// whole reads a partition out of a value: any whole number, counted on from the last partition to the first again.
func whole(v *pipelines.Value, partitions int32) (int32, bool) {
	n, err := v.ToInt64()
	if err != nil {
		return 0, false
	}
	n %= int64(partitions)
	if n < 0 {
		n += int64(partitions)
	}
	return int32(n), true
}
