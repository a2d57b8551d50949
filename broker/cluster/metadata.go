package cluster

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// ErrStaleControllerEpoch says that an update is of a controller that has been
// replaced.
var ErrStaleControllerEpoch = errors.New("the controller has been replaced")

// ErrStaleUpdate says that an update came after one that is newer, or changes a
// picture that this broker does not have: the controller is to send a full one.
var ErrStaleUpdate = errors.New("the update does not follow the one before")

// Metadata is one broker's picture of the cluster, and what follows it. It
// changes only by the updates that a controller pushes; the controller's own
// broker is no exception.
//
// A Metadata is safe for concurrent use. Its lock is held over the subscribers;
// it is taken before any lock that a subscriber takes, and after none of the
// controller's.
type Metadata struct {
	image atomic.Pointer[Image]

	mu          sync.Mutex // guards what follows, and orders changes
	seq         int64      // of the newest update of the image's controller epoch
	subscribers []func(old, new *Image)
}

// NewMetadata returns a broker's picture before the first update: a nil image.
func NewMetadata() *Metadata { return &Metadata{} }

// Image returns the newest image; nil before the first update. It takes no lock.
func (m *Metadata) Image() *Image { return m.image.Load() }

// Subscribe calls fn after every change, in order and one at a time, from the
// goroutine that received the change and before Receive returns. fn must not
// wait for a change of the cluster. If there is an image already, fn is first
// called with a nil old one. Use [DiffTopics] to see what changed.
func (m *Metadata) Subscribe(fn func(old, new *Image)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers = append(m.subscribers, fn)
	if im := m.image.Load(); im != nil {
		fn(nil, im)
	}
}

// View calls fn with the image while nothing can change it, in order with the
// calls of subscribers. fn must not wait for a change of the cluster.
func (m *Metadata) View(fn func(*Image)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn(m.image.Load())
}

// Receive takes an update of a controller. It returns once all subscribers have
// seen the new image. An update that is older than what is known changes
// nothing: the errors are [ErrStaleControllerEpoch] and [ErrStaleUpdate].
func (m *Metadata) Receive(u *Update) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.image.Load()
	if err := m.admit(old, u); err != nil {
		return err
	}
	m.seq = u.Seq
	im := u.Apply(old)
	m.image.Store(im)
	for _, fn := range m.subscribers {
		fn(old, im)
	}
	return nil
}

// admit refuses what does not follow. A late copy of an earlier request must not
// bring back a topic that was deleted since.
func (m *Metadata) admit(old *Image, u *Update) error {
	switch {
	case old == nil && !u.Full:
		return fmt.Errorf("%w: this broker has no picture of the cluster yet", ErrStaleUpdate)
	case old == nil:
		return nil
	case u.ControllerEpoch < old.ControllerEpoch:
		return fmt.Errorf("%w: the update is of controller epoch %d, and epoch %d is known", ErrStaleControllerEpoch, u.ControllerEpoch, old.ControllerEpoch)
	case u.ControllerEpoch > old.ControllerEpoch && !u.Full:
		return fmt.Errorf("%w: the first update of controller epoch %d is not a full one", ErrStaleUpdate, u.ControllerEpoch)
	case u.ControllerEpoch == old.ControllerEpoch && u.Seq <= m.seq:
		return fmt.Errorf("%w: it is number %d of controller epoch %d, and %d is known", ErrStaleUpdate, u.Seq, u.ControllerEpoch, m.seq)
	}
	return nil
}
