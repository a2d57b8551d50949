package main

import (
	"fmt"
	"testing"

	"github.com/sluice-io/sluice/pipelines"
)

// The embedded broker keeps what the sinks on it have not committed, and minds no others.
func TestRetentionWaitsForSinksOfTheEmbeddedBroker(t *testing.T) {
	pipes := []*pipelines.Pipeline{
		{Name: "one", Topic: pipelines.Topic{Name: "a"}, Sinks: []*pipelines.SinkSpec{{Pipeline: "one"}}},
		{Name: "two", Topic: pipelines.Topic{Name: "a"}, Sinks: []*pipelines.SinkSpec{{Pipeline: "two", Name: "x"}, {Pipeline: "two", Name: "y"}}},
		{Name: "elsewhere", Brokers: &pipelines.Brokers{}, Topic: pipelines.Topic{Name: "b"}, Sinks: []*pipelines.SinkSpec{{Pipeline: "elsewhere"}}},
	}
	if got := fmt.Sprint(sinkGroups(pipes)); got != "map[a:[one two.x two.y]]" {
		t.Errorf("%s", got)
	}
}
