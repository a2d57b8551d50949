package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/internal/connect"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// dialTimeout bounds making a connection, greeting included.
const dialTimeout = 5 * time.Second

// idleConnectionsMax is how many connections are kept between writes.
const idleConnectionsMax = 8

// dialer makes connections to one of the addresses.
type dialer func(ctx context.Context, addr string) (*ch.Client, error)

func newDialer(spec *pipelines.ClickHouse) (dialer, error) {
	password, err := spec.Password.Reveal()
	if err != nil {
		return nil, fmt.Errorf("clickhouse password: %w", err)
	}
	options := ch.Options{
		Database:         "system", // tables are named in full, and the sink's database may not be there yet
		User:             spec.Username,
		Password:         password,
		ClientName:       "sluice",
		Compression:      ch.CompressionLZ4,
		DialTimeout:      dialTimeout,
		HandshakeTimeout: dialTimeout,
		ReadTimeout:      ch.NoTimeout, // the context's deadline holds
	}
	if spec.TLS != nil {
		if options.TLS, err = connect.TLS(spec.TLS); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, addr string) (*ch.Client, error) {
		o := options
		o.Address = addr
		client, err := ch.Dial(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("connect to %s: %w", addr, explainConnect(err, spec))
		}
		return client, nil
	}, nil
}

// client takes an idle connection or makes one.
func (s *Sink) client(ctx context.Context, server string) (*ch.Client, error) {
	s.mu.Lock()
	for n := len(s.free); n > 0; n = len(s.free) {
		client := s.free[n-1]
		s.free = s.free[:n-1]
		if !client.IsClosed() {
			s.mu.Unlock()
			return client, nil
		}
	}
	s.mu.Unlock()
	return s.dial(ctx, server)
}

func (s *Sink) release(client *ch.Client) {
	s.mu.Lock()
	if len(s.free) < idleConnectionsMax {
		s.free = append(s.free, client)
		client = nil
	}
	s.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

// explainConnect says what an error of the greeting means for the operator.
func explainConnect(err error, spec *pipelines.ClickHouse) error {
	var exception *ch.Exception
	if !errors.As(err, &exception) {
		return err
	}
	switch exception.Code {
	case proto.ErrAuthenticationFailed, proto.ErrUnknownUser, proto.ErrWrongPassword, proto.ErrRequiredPassword:
		return fmt.Errorf("the server refuses user %q with this password: check username and password of the sink: %w", spec.Username, err)
	default:
		return err
	}
}

// explain marks errors that a newer look at the table explains better, and shortens what the server says.
func explain(err error) error {
	var exception *ch.Exception
	if !errors.As(err, &exception) {
		return err
	}
	switch exception.Code {
	case proto.ErrNoSuchColumnInTable, proto.ErrNotFoundColumnInBlock, proto.ErrUnknownIdentifier, proto.ErrTypeMismatch,
		proto.ErrUnknownTable, proto.ErrUnknownDatabase, proto.ErrThereIsNoColumn, proto.ErrCannotConvertType, proto.ErrIllegalColumn:
		return errors.Join(sinks.ErrSchemaChanged, err)
	default:
		return err
	}
}
