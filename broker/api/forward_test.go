package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
)

// A change that finds no controller is answered within the time that its client
// waits, so that it is tried again, and with the reason.
func TestAChangeWithoutAControllerSaysWhy(t *testing.T) {
	n := newNode(t)
	n.api.Controller = cluster.NewController(slog.New(slog.DiscardHandler), cluster.NewMemory().Open(), cluster.NewMetadata(), nil, cluster.ControllerConfig{
		Away: func() error { return errors.New("no connection to ZooKeeper") },
	})
	n.api.ControllerID = func() int32 { return 2 }
	tries := 0
	n.api.Forward = func(context.Context, cluster.Broker, []byte, []byte) ([]byte, error) {
		tries++
		return nil, errors.New("connection refused")
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 300
	for _, topic := range []string{"a", "b"} {
		one := kmsg.NewCreateTopicsRequestTopic()
		one.Topic, one.NumPartitions, one.ReplicationFactor = topic, 1, 1
		req.Topics = append(req.Topics, one)
	}
	begun := time.Now()
	resp := n.dial().ask(req).(*kmsg.CreateTopicsResponse)
	if took := time.Since(begun); took < 300*time.Millisecond || took > 10*time.Second {
		t.Errorf("answered after %v", took)
	}
	if tries < 2 || len(resp.Topics) != 2 {
		t.Errorf("%d tries, %+v", tries, resp)
	}
	for _, topic := range resp.Topics {
		err := kerr.ErrorForCode(topic.ErrorCode)
		if !kerr.IsRetriable(err) || topic.ErrorMessage == nil || !strings.Contains(*topic.ErrorMessage, "no connection to ZooKeeper") {
			t.Errorf("%s: %v, %v", topic.Topic, err, topic.ErrorMessage)
		}
	}
}

// A client that comes before the broker knows the cluster is answered when it does. A stop
// ends its wait.
func TestWhoComesTooEarlyWaits(t *testing.T) {
	n := newNode(t)
	im := n.currentImage()
	n.setImage(nil)
	early, other := n.dial(), n.dial()
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 9
	sent := early.send(req)
	versions := kmsg.NewPtrApiVersionsRequest()
	other.ask(versions) // is answered all the same
	n.setImage(im)
	n.api.ImageChanged()
	if resp := early.receive(req, sent).(*kmsg.MetadataResponse); len(resp.Brokers) != 2 {
		t.Errorf("%+v", resp)
	}
	n.setImage(nil)
	early.send(req)
	other.send(req)
	n.api.Drain()
	early.expectClosed()
	other.expectClosed()
}

func (n *node) setImage(im *cluster.Image) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.image = im
}

// The rule of rolling upgrades names the versions that brokers speak to each other. Who
// changes one changes the rule: brokers of the release before speak the other one.
func TestVersionsBetweenBrokersAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[int16]string{4: "LeaderAndIsr", 5: "StopReplica", 6: "UpdateMetadata", 7: "ControlledShutdown", 56: "AlterPartition", 58: "Envelope"}
	said := strings.Join(strings.Fields(string(text)), " ")
	for _, rt := range clusterRoutes() {
		if !rt.internal {
			continue
		}
		if want := fmt.Sprintf("%s %d", names[rt.key], rt.max); rt.min != rt.max || names[rt.key] == "" || !strings.Contains(said, want) {
			t.Errorf("docs/operations.md does not name %q (versions %d to %d of request %d)", want, rt.min, rt.max, rt.key)
		}
	}
}
