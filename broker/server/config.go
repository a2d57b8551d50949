package server

import "time"

// Config has the limits of a server. The zero value of each field selects the
// default that is named there.
type Config struct {
	// ListenAddrs are host:port pairs to listen on. Port 0 takes a free one.
	ListenAddrs []string
	// ListenNames name the listeners, in the same order; see Conn.ListenerName.
	// One that is missing has no name.
	ListenNames []string

	// MaxRequestBytes limits one request (socket.request.max.bytes): 100 MiB.
	MaxRequestBytes int
	// MaxConnections limits the open connections (max.connections): 10,000.
	MaxConnections int
	// MaxConnectionsPerIP limits those of one address
	// (max.connections.per.ip): no limit of its own.
	MaxConnectionsPerIP int
	// MaxInFlight limits the unanswered requests of one connection, after
	// which it is not read: 64.
	MaxInFlight int
	// RequestMemoryBytes limits the memory of all requests that are being read
	// or not yet answered (queued.max.request.bytes): 256 MiB, and never less
	// than two requests of MaxRequestBytes.
	RequestMemoryBytes int64
	// IdleMemoryBytes limits the buffers that are kept for later requests: 32 MiB.
	IdleMemoryBytes int64

	// SendBufferBytes is what the kernel keeps of the answers that a client has
	// not taken (socket.send.buffer.bytes): 100 KiB; less than 0 leaves it to the
	// kernel. A small one keeps a fetch in the processor's cache.
	SendBufferBytes int

	// IdleTimeout closes a connection without requests
	// (connections.max.idle.ms): 10 minutes.
	IdleTimeout time.Duration
	// FrameTimeout closes a connection that stops in the middle of a frame: 30
	// seconds, and one more for each 64 KiB of the frame.
	FrameTimeout time.Duration
	// WriteTimeout closes a connection that takes nothing of its answers: 60 seconds.
	WriteTimeout time.Duration

	// Check is asked about a request before memory is given to it. An error
	// closes the connection. Nil accepts all.
	Check func(key, version int16, bytes int) error
	// Sums, if set, tells of which requests PieceSum is wanted of each whole piece of
	// PieceBytes, from the start of the frame, while the piece is in the processor's
	// cache. Only frames that are too large to stay there get it.
	Sums       func(key int16) bool
	PieceBytes int
	PieceSum   func(piece []byte) uint32
	// Flexible tells whether a request's header carries tagged fields (request
	// header version 2). Nil means that none does.
	Flexible func(key, version int16) bool
	// APIName names a request kind in metrics. Nil means its number.
	APIName func(key int16) string
}

const (
	defaultMaxRequestBytes    = 100 << 20
	defaultMaxConnections     = 10_000
	defaultMaxInFlight        = 64
	defaultRequestMemoryBytes = 256 << 20
	defaultIdleMemoryBytes    = 32 << 20
	defaultSendBufferBytes    = 100 << 10
	defaultIdleTimeout        = 10 * time.Minute
	defaultFrameTimeout       = 30 * time.Second
	defaultWriteTimeout       = 60 * time.Second

	// frameBytesPerSecond is the rate below which a frame is taken for stalled.
	frameBytesPerSecond = 64 << 10
	// readBufferBytes is the buffer of a connection: small requests come whole
	// in one read, large ones go past it.
	readBufferBytes = 4 << 10
	// summedBytesMin is from where on a frame has left the nearest cache when it is
	// whole, and summedReadBytes how much of it is read before it is summed.
	summedBytesMin  = 256 << 10
	summedReadBytes = 256 << 10
	// janitorInterval is how often connections are looked at, and so the
	// precision of the timeouts.
	janitorInterval = time.Second
)

func (c Config) withDefaults() Config {
	c.MaxRequestBytes = or(c.MaxRequestBytes, defaultMaxRequestBytes)
	c.MaxConnections = or(c.MaxConnections, defaultMaxConnections)
	c.MaxInFlight = or(c.MaxInFlight, defaultMaxInFlight)
	c.RequestMemoryBytes = or(c.RequestMemoryBytes, defaultRequestMemoryBytes)
	c.RequestMemoryBytes = max(c.RequestMemoryBytes, 2*int64(c.MaxRequestBytes))
	c.IdleMemoryBytes = or(c.IdleMemoryBytes, defaultIdleMemoryBytes)
	if c.SendBufferBytes == 0 {
		c.SendBufferBytes = defaultSendBufferBytes
	}
	c.IdleTimeout = or(c.IdleTimeout, defaultIdleTimeout)
	c.FrameTimeout = or(c.FrameTimeout, defaultFrameTimeout)
	c.WriteTimeout = or(c.WriteTimeout, defaultWriteTimeout)
	if c.Check == nil {
		c.Check = func(int16, int16, int) error { return nil }
	}
	if c.Sums == nil {
		c.Sums = func(int16) bool { return false }
	}
	if c.Flexible == nil {
		c.Flexible = func(int16, int16) bool { return false }
	}
	return c
}

func or[T int | int64 | time.Duration](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}
