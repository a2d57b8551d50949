package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/pipelines"
)

// transport is a way to one server, over the native protocol or HTTP. It carries one request at a time. Not safe for concurrent use.
type transport interface {
	// query returns rows of n columns, which must be strings.
	query(ctx context.Context, statement string, n int, settings []ch.Setting) ([][]string, error)
	// insert sends the block and returns when it is stored, with the parts that were made of it, 0 where the server does not say.
	insert(ctx context.Context, b *block, identity string, settings []ch.Setting) (parts int, err error)
	// ask returns the rows of a query over the block's rows, which it knows as keysTable: two columns of text.
	ask(ctx context.Context, b *block, query string) ([][]string, error)
	// usable says that the connection can carry another request.
	usable() bool
	close()
}

// dialer makes connections to one of the addresses.
type dialer func(ctx context.Context, addr string) (transport, error)

func newDialer(spec *pipelines.ClickHouse) (dialer, error) {
	password, err := spec.Password.Reveal()
	if err != nil {
		return nil, fmt.Errorf("clickhouse password: %w", err)
	}
	if spec.Protocol == pipelines.ProtocolHTTP {
		return newHTTPDialer(spec, password)
	}
	return newNativeDialer(spec, password)
}

// compressionTo is what to compress with for a server. A server of this machine gets what is sent through memory: to compress it costs both sides more.
func compressionTo(addr string, c pipelines.Compression) pipelines.Compression {
	if c != pipelines.CompressionAuto {
		return c
	}
	host, _, err := net.SplitHostPort(addr)
	if ip, ipErr := netip.ParseAddr(host); err == nil && (host == "localhost" || ipErr == nil && ip.IsLoopback()) {
		return pipelines.CompressionNone
	}
	return pipelines.CompressionLZ4
}

// serverError is an error that the server answered with.
type serverError struct {
	code    proto.Error
	message string
}

// serverErrorOf finds what the server answered in an error of either transport.
func serverErrorOf(err error) (serverError, bool) {
	var native *ch.Exception
	if errors.As(err, &native) {
		return serverError{native.Code, native.Message}, true
	}
	var answered *httpError
	if errors.As(err, &answered) && answered.code != 0 {
		return serverError{answered.code, answered.message}, true
	}
	return serverError{}, false
}

// explainConnect says what an error of the greeting means for the operator.
func explainConnect(err error, username string) error {
	e, ok := serverErrorOf(err)
	if !ok {
		return err
	}
	switch e.code {
	case proto.ErrAuthenticationFailed, proto.ErrUnknownUser, proto.ErrWrongPassword, proto.ErrRequiredPassword:
		return fmt.Errorf("the server refuses user %q with this password: check username and password of the sink: %w", username, err)
	default:
		return err
	}
}

// tooManyPartitions says that the server refused a block since its rows are of too many partitions of the table. It is the same code as too many parts,
// which is to be waited out.
func tooManyPartitions(err error) bool {
	e, ok := serverErrorOf(err)
	return ok && e.code == proto.ErrTooManyParts && strings.Contains(e.message, "partitions for single INSERT block")
}
