package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
)

// Config has the settings of a [Client].
type Config struct {
	// BrokerID is this node, as its peers see it in their logs.
	BrokerID int32
	// Listener is the name of the listener that the brokers reach each other by
	// (inter.broker.listener.name).
	Listener string
	// DialTimeout bounds the making of a connection. Zero means 3 seconds.
	DialTimeout time.Duration
	// RequestTimeout bounds one request where its context does not. Zero means 30 seconds.
	RequestTimeout time.Duration
	// SocketReceiveBytes is the receive buffer of a fetch connection
	// (replica.socket.receive.buffer.bytes). Zero leaves it to the system.
	SocketReceiveBytes int
}

const (
	defaultDialTimeout    = 3 * time.Second
	defaultRequestTimeout = 30 * time.Second
	// idleMax is how long a connection is kept without use: well below
	// connections.max.idle.ms, after which its other side closes it.
	idleMax = time.Minute
	// idleConnsMax is how many connections without use are kept to one broker.
	idleConnsMax = 4
)

// Client speaks to the other brokers. It is safe for concurrent use; its lock
// is a leaf.
type Client struct {
	log *slog.Logger
	cfg Config

	mu     sync.Mutex
	idle   map[registration][]*conn
	closed bool
}

// registration is one life of a broker.
type registration struct {
	id    int32
	epoch int64
}

// New returns a client without connections.
func New(log *slog.Logger, cfg Config) *Client {
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = defaultDialTimeout
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = defaultRequestTimeout
	}
	return &Client{log: log, cfg: cfg, idle: map[registration][]*conn{}}
}

// Close closes all connections that are not in use, and those in use when they
// are given back.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for life := range c.idle {
		c.dropIdle(life)
	}
}

// dropIdle closes what is kept to one life of a broker. c.mu is held.
func (c *Client) dropIdle(life registration) {
	for _, conn := range c.idle[life] {
		_ = conn.Close()
	}
	delete(c.idle, life)
}

// with calls fn with a connection to a broker that no other call uses. An error
// of fn costs the connection.
func (c *Client) with(ctx context.Context, to cluster.Broker, fn func(context.Context, *conn) error) error {
	conn, err := c.take(ctx, to)
	if err == nil {
		if err = fn(ctx, conn); err == nil {
			c.give(to, conn)
			return nil
		}
		_ = conn.Close()
	}
	host, port := to.At(c.cfg.Listener)
	return fmt.Errorf("broker %d at %s:%d: %w", to.ID, host, port, err)
}

// request sends one request; read takes what is needed of the answer, which is
// void after it.
func (c *Client) request(ctx context.Context, to cluster.Broker, req kmsg.Request, read func(kmsg.Response) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	return c.with(ctx, to, func(ctx context.Context, conn *conn) error {
		resp, err := conn.roundTrip(ctx, req)
		if err != nil {
			return fmt.Errorf("%s: %w", kmsg.NameForKey(req.Key()), err)
		}
		return read(resp)
	})
}

func (c *Client) take(ctx context.Context, to cluster.Broker) (*conn, error) {
	life := registration{to.ID, to.Epoch}
	c.mu.Lock()
	for kept := c.idle[life]; len(kept) > 0; kept = c.idle[life] {
		conn := kept[len(kept)-1]
		c.idle[life] = kept[:len(kept)-1]
		if time.Since(conn.idleSince) < idleMax {
			c.mu.Unlock()
			return conn, nil
		}
		_ = conn.Close()
	}
	for other := range c.idle {
		if other.id == to.ID && other.epoch < to.Epoch {
			c.dropIdle(other)
		}
	}
	c.mu.Unlock()
	return c.dial(ctx, to)
}

func (c *Client) dial(ctx context.Context, to cluster.Broker) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	host, port := to.At(c.cfg.Listener)
	return dial(ctx, net.JoinHostPort(host, strconv.Itoa(int(port))), fmt.Sprintf("broker-%d", c.cfg.BrokerID))
}

func (c *Client) give(to cluster.Broker, conn *conn) {
	life := registration{to.ID, to.Epoch}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle[life]) >= idleConnsMax {
		_ = conn.Close()
		return
	}
	conn.idleSince = time.Now()
	c.idle[life] = append(c.idle[life], conn)
}
