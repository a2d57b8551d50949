package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The protocols of consumer groups.
const (
	ProtocolClassic  = "classic"
	ProtocolConsumer = "consumer" // KIP-848
)

// stateDead is what older brokers say of a group that they do not have.
const stateDead = "Dead"

// A Group is a consumer group of either protocol.
type Group struct {
	Name        string   `json:"group"`
	State       string   `json:"state"`    // Stable, Empty, ...
	Protocol    string   `json:"protocol"` // ProtocolClassic or ProtocolConsumer
	Assignor    string   `json:"assignor,omitempty"`
	Coordinator int32    `json:"coordinator"`
	Members     []Member `json:"members"`
}

// A Member is a client in a group.
type Member struct {
	ID         string             `json:"id"`
	InstanceID string             `json:"instance_id,omitempty"` // of a static member
	ClientID   string             `json:"client_id"`
	Host       string             `json:"host"`
	Topics     []string           `json:"topics"` // subscribed to
	Assigned   map[string][]int32 `json:"assigned"`
}

// Groups describes the named groups, or all consumer groups, by name.
func Groups(ctx context.Context, client *kgo.Client, names ...string) ([]Group, error) {
	admin := kadm.NewClient(client)
	if len(names) == 0 {
		listed, err := admin.ListGroups(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the groups: %w", err)
		}
		for _, g := range listed {
			if g.GroupType == "" || g.GroupType == ProtocolClassic || g.GroupType == ProtocolConsumer {
				names = append(names, g.Group)
			}
		}
		if len(names) == 0 {
			return []Group{}, nil
		}
	}
	out, rest := describeConsumer(ctx, admin, names)
	if len(rest) > 0 {
		classic, err := describeClassic(ctx, admin, rest)
		if err != nil {
			return nil, err
		}
		out = append(out, classic...)
	}
	slices.SortFunc(out, func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// describeConsumer describes those of the groups that speak the consumer protocol; rest are the others. A broker that does not know the protocol has
// none of them, and what else goes wrong shows when the rest is described.
func describeConsumer(ctx context.Context, admin *kadm.Client, names []string) (out []Group, rest []string) {
	described, _ := admin.DescribeConsumerGroups(ctx, names...)
	for _, name := range names {
		d, ok := described[name]
		if !ok || d.Err != nil {
			rest = append(rest, name)
			continue
		}
		g := Group{Name: name, State: d.State, Protocol: ProtocolConsumer, Assignor: d.AssignorName, Coordinator: d.Coordinator.NodeID, Members: []Member{}}
		for _, m := range d.Members {
			g.Members = append(g.Members, Member{ID: m.MemberID, InstanceID: deref(m.InstanceID), ClientID: m.ClientID, Host: m.ClientHost,
				Topics: m.SubscribedTopics, Assigned: assignment(m.Assignment)})
		}
		out = append(out, g)
	}
	return out, rest
}

func describeClassic(ctx context.Context, admin *kadm.Client, names []string) (out []Group, err error) {
	described, err := admin.DescribeGroups(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("describe the groups: %w", err)
	}
	for _, name := range names {
		d, ok := described[name]
		switch {
		case !ok, d.Err == nil && d.State == stateDead && len(d.Members) == 0:
			return nil, fmt.Errorf("group %s: %w", name, kerr.GroupIDNotFound)
		case d.Err != nil:
			return nil, fmt.Errorf("group %s: %w", name, d.Err)
		}
		g := Group{Name: name, State: d.State, Protocol: ProtocolClassic, Assignor: d.Protocol, Coordinator: d.Coordinator.NodeID, Members: []Member{}}
		for _, m := range d.Members {
			member := Member{ID: m.MemberID, InstanceID: deref(m.InstanceID), ClientID: m.ClientID, Host: m.ClientHost, Topics: []string{}, Assigned: map[string][]int32{}}
			if c, ok := m.Join.AsConsumer(); ok {
				member.Topics = c.Topics
			}
			if a, ok := m.Assigned.AsConsumer(); ok {
				for _, t := range a.Topics {
					member.Assigned[t.Topic] = t.Partitions
				}
			}
			g.Members = append(g.Members, member)
		}
		out = append(out, g)
	}
	return out, nil
}

func assignment(set kadm.TopicsSet) map[string][]int32 {
	out := map[string][]int32{}
	for _, t := range set.Sorted() {
		out[t.Topic] = t.Partitions
	}
	return out
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// clients are the members' names for a message.
func (g *Group) clients() string {
	var names []string
	for _, m := range g.Members {
		name := m.ClientID + " at " + m.Host
		if m.InstanceID != "" {
			name += ", static member " + m.InstanceID
		}
		names = append(names, name)
	}
	return strings.Join(names, "; ")
}

// mustBeEmpty refuses to touch the commits of a group that has members, for they would commit over it, or go on from what they have in memory.
func (g *Group) mustBeEmpty() error {
	if len(g.Members) == 0 {
		return nil
	}
	return fmt.Errorf("group %s has members (%s): stop them first and wait until `sluice groups list` says Empty; a killed or static member leaves when its session times out",
		g.Name, g.clients())
}

// emptyGroup describes a group whose commits are to be changed; one that does not exist has no commits and no members.
func emptyGroup(ctx context.Context, client *kgo.Client, name string) (exists bool, err error) {
	groups, err := Groups(ctx, client, name)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, groups[0].mustBeEmpty()
}

// DeleteGroup removes a group with its commits. It must have no members.
func DeleteGroup(ctx context.Context, client *kgo.Client, name string) error {
	exists, err := emptyGroup(ctx, client, name)
	if err != nil {
		return err
	}
	if !exists {
		return fmt.Errorf("group %s: %w", name, kerr.GroupIDNotFound)
	}
	if _, err := kadm.NewClient(client).DeleteGroup(ctx, name); err != nil {
		return fmt.Errorf("delete group %s: %w", name, err)
	}
	return nil
}
