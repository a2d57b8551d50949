package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// errResigned makes a member wait a little after it has given up the office, so
// that another broker can have it.
var errResigned = errors.New("this broker has resigned as the controller")

// standForOffice takes the office if it is vacant, and leaves it if it is lost.
func (m *Member) standForOffice(ctx context.Context, session Session) (err error) {
	for range triesMax {
		var settled bool
		if settled, err = m.tryOffice(ctx, session); settled || err != nil && !overtaken(err) {
			return err
		}
		// Something changed meanwhile: reading tells.
	}
	return err
}

func (m *Member) tryOffice(ctx context.Context, session Session) (settled bool, err error) {
	holder, mine, err := m.readOffice(ctx, session)
	if err != nil {
		return false, err
	}
	m.controller.Store(holder)
	switch {
	case mine && m.reign == nil: // the answer to its election was lost
		return true, m.resumeOffice(ctx, session)
	case mine && m.resigned.Load() == m.reign.epoch:
		return true, m.vacate(ctx, session)
	case mine:
		return true, nil
	case m.reign != nil: // its node was removed, and that of another may be there
		m.log.Warn("this broker has lost the office of the controller", "epoch", m.reign.epoch)
		m.leaveOffice()
		return false, nil
	case holder != noController:
		return true, nil
	}
	return m.elect(ctx, session)
}

// readOffice reads who is in office, and whether it is this member in its session.
func (m *Member) readOffice(ctx context.Context, session Session) (holder int32, mine bool, err error) {
	data, stat, err := m.store.Get(ctx, controllerPath)
	if errors.Is(err, ErrNoNode) {
		return noController, false, nil
	}
	if err != nil {
		return noController, false, err
	}
	var n controllerNode
	if err := parseNode("controller", data, &n); err != nil {
		return noController, false, err
	}
	return n.BrokerID, stat.Owner == session.ID, nil
}

// elect takes the office in one transaction with the next epoch, so that of two
// candidates one wins, and each reign has an epoch of its own. It is not settled
// when another was faster, or the answer was lost.
func (m *Member) elect(ctx context.Context, session Session) (settled bool, err error) {
	epoch, version, err := m.readEpoch(ctx)
	if err != nil {
		return false, err
	}
	id := m.self.Broker.ID
	node := mustJSON(controllerNode{Version: 2, BrokerID: id, Timestamp: millis(m.cfg.Now()), KRaft: -1})
	err = m.store.Txn(ctx,
		CreateEphemeral(controllerPath, node).In(session),
		Set(controllerEpochPath, strconv.AppendInt(nil, int64(epoch)+1, 10), version))
	if err != nil {
		return false, fmt.Errorf("elect controller: %w", err)
	}
	return true, m.takeOffice(ctx, session, epoch+1, version+1)
}

func (m *Member) readEpoch(ctx context.Context) (epoch, version int32, err error) {
	data, stat, err := m.store.Get(ctx, controllerEpochPath)
	if err != nil {
		return 0, 0, err
	}
	n, err := strconv.ParseInt(string(data), 10, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("read controller epoch %q: %w", data, err)
	}
	return int32(n), stat.Version, nil
}

// resumeOffice begins the reign of an election that this member won without
// learning so. Nobody has been elected since: its node is still there. A reign
// that it had given up, without learning that, is not begun again.
func (m *Member) resumeOffice(ctx context.Context, session Session) error {
	epoch, version, err := m.readEpoch(ctx)
	if err != nil {
		return err
	}
	if epoch == m.reigned {
		return m.vacate(ctx, session)
	}
	return m.takeOffice(ctx, session, epoch, version)
}

func (m *Member) takeOffice(ctx context.Context, session Session, epoch, version int32) error {
	reigning, end := context.WithCancel(ctx)
	m.reign = &reign{epoch: epoch, session: session, end: end}
	m.reigned = epoch
	m.controller.Store(m.self.Broker.ID)
	go func() {
		select {
		case <-session.Ended:
			end()
		case <-reigning.Done():
		}
	}()
	m.log.Debug("this broker is elected controller", "epoch", epoch)
	err := m.officer.TakeOffice(reigning, Office{
		Epoch: epoch, EpochVersion: version, Session: session,
		Resign: func() { m.resign(epoch) },
	})
	if err != nil {
		if vacateErr := m.vacate(ctx, session); !errors.Is(vacateErr, errResigned) {
			m.log.Warn("the office of the controller could not be given up", "error", vacateErr)
		}
		return fmt.Errorf("take office as the controller: %w", err)
	}
	return nil
}

// resign notes that the officer gives up the reign of that epoch.
func (m *Member) resign(epoch int32) {
	m.resigned.Store(epoch)
	m.wake()
}

// vacate leaves the office and removes its node. The error is errResigned then.
func (m *Member) vacate(ctx context.Context, session Session) error {
	m.leaveOffice()
	m.controller.Store(noController)
	if err := m.remove(ctx, controllerPath, session); err != nil {
		return fmt.Errorf("resign as the controller: %w", err)
	}
	return errResigned
}

func (m *Member) leaveOffice() {
	if m.reign == nil {
		return
	}
	m.reign.end()
	m.officer.LeaveOffice()
	m.reign = nil
}
