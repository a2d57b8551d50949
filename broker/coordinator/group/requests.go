package group

import (
	"errors"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// Join answers when the group's next generation begins: up to the rebalance timeout later.
func (c *Coordinator) Join(req JoinRequest, answer func(JoinResponse)) {
	if req.Group == "" {
		answer(joinRefused(req.MemberID, ErrInvalidGroupID))
		return
	}
	err := c.do(req.Group, func(m *machine, now time.Time, out *coordinator.Actions) { m.join(req, now, out, answer) })
	if err != nil {
		answer(joinRefused(req.MemberID, err))
	}
}

// Sync answers when the leader has given its assignment and that is committed.
func (c *Coordinator) Sync(req SyncRequest, answer func(SyncResponse)) {
	if req.Group == "" {
		answer(SyncResponse{Err: ErrInvalidGroupID})
		return
	}
	err := c.do(req.Group, func(m *machine, now time.Time, out *coordinator.Actions) { m.sync(req, now, out, answer) })
	if err != nil {
		answer(SyncResponse{Err: err})
	}
}

// Heartbeat keeps a member's session, and tells it to rejoin with ErrRebalanceInProgress.
func (c *Coordinator) Heartbeat(req HeartbeatRequest) (answer error) {
	if req.Group == "" {
		return ErrInvalidGroupID
	}
	err := c.do(req.Group, func(m *machine, now time.Time, out *coordinator.Actions) { answer = m.heartbeat(req, now, out) })
	if err != nil {
		if errors.Is(err, ErrLoading) {
			return nil // taken on trust: sessions begin anew once the group is loaded
		}
		return err
	}
	return answer
}

// Leave takes members out of a group. When nobody is left it answers once that is stored.
func (c *Coordinator) Leave(req LeaveRequest, answer func(LeaveResponse)) {
	if req.Group == "" {
		answer(LeaveResponse{Err: ErrInvalidGroupID})
		return
	}
	err := c.do(req.Group, func(m *machine, now time.Time, out *coordinator.Actions) { m.leave(req, now, out, answer) })
	if err != nil {
		answer(LeaveResponse{Err: err})
	}
}

// Commit answers when the offsets are stored.
func (c *Coordinator) Commit(req CommitRequest, answer func(CommitResponse)) {
	err := c.do(req.Group, func(m *machine, now time.Time, out *coordinator.Actions) { m.commit(req, now, out, answer) })
	if err != nil {
		answer(CommitResponse{Err: err})
	}
}

// Offsets returns committed offsets: all of the group's in order of topic and partition, or those
// that were asked for, with offset -1 where there is none. A group that does not exist has none.
func (c *Coordinator) Offsets(req FetchRequest) (offsets []Offset, err error) {
	refused := c.do(req.Group, func(m *machine, _ time.Time, _ *coordinator.Actions) { offsets, err = m.fetch(req) })
	if refused != nil {
		return nil, refused
	}
	return offsets, err
}

// List returns the groups of every partition that this broker leads, in no order. ErrLoading comes
// with the groups of the other partitions while one loads.
func (c *Coordinator) List() (all []Listing, err error) {
	for _, s := range c.allShards() {
		if state, _ := s.State(); state == coordinator.Loading {
			err = ErrLoading
			continue
		}
		_ = s.Do(func(m *machine, _ time.Time, _ *coordinator.Actions) { all = m.list(all) }) // a shard that is not active has none
	}
	return all, err
}

// Describe tells of one group: ErrGroupNotFound if there is none, with State Dead.
func (c *Coordinator) Describe(group string) (d Description, err error) {
	refused := c.do(group, func(m *machine, _ time.Time, _ *coordinator.Actions) { d, err = m.describe(group) })
	if refused != nil {
		return Description{Group: group}, refused
	}
	return d, err
}

// Delete removes a group without members and its offsets; it answers when that is stored.
func (c *Coordinator) Delete(group string, answer func(error)) {
	err := c.do(group, func(m *machine, _ time.Time, out *coordinator.Actions) { m.delete(group, out, answer) })
	if err != nil {
		answer(err)
	}
}

// Views returns every group of this coordinator with its committed offsets, by partition, then by
// name.
func (c *Coordinator) Views() (all []View) {
	for _, s := range c.allShards() {
		_ = s.Do(func(m *machine, _ time.Time, _ *coordinator.Actions) { all = m.views(all) }) // as in List
	}
	return all
}
