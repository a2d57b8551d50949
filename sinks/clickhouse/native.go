package clickhouse

import (
	"context"
	"fmt"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/internal/connect"
	"github.com/sluice-io/sluice/pipelines"
)

// dialTimeout bounds making a connection, greeting included.
const dialTimeout = 5 * time.Second

// native is a connection of the native protocol.
type native struct{ client *ch.Client }

var nativeCompression = map[pipelines.Compression]ch.Compression{
	pipelines.CompressionLZ4:  ch.CompressionLZ4,
	pipelines.CompressionZstd: ch.CompressionZSTD,
	pipelines.CompressionNone: ch.CompressionDisabled,
}

func newNativeDialer(spec *pipelines.ClickHouse, password string) (dialer, error) {
	options := ch.Options{
		Database:         "system", // tables are named in full, and the sink's database may not be there yet
		User:             spec.Username,
		Password:         password,
		ClientName:       "sluice",
		DialTimeout:      dialTimeout,
		HandshakeTimeout: dialTimeout,
		ReadTimeout:      ch.NoTimeout, // the context's deadline holds
	}
	if spec.TLS != nil {
		var err error
		if options.TLS, err = connect.TLS(spec.TLS); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, addr string) (transport, error) {
		o := options
		o.Address, o.Compression = addr, nativeCompression[compressionTo(addr, spec.Compression)]
		client, err := ch.Dial(ctx, o)
		if err == nil && client.ServerInfo().Revision < revisionInfo {
			_ = client.Close()
			o.ProtocolVersion = revisionOld
			client, err = ch.Dial(ctx, o)
		}
		if err != nil {
			return nil, fmt.Errorf("connect to %s: %w", addr, explainConnect(err, spec.Username))
		}
		return &native{client}, nil
	}, nil
}

// The client leaves out what servers of before revisionInfo, of 2019, expect with each query from clients of their own age. From one of revisionOld they expect
// nothing that it does not send. Neither side knows settings as text then, so such a server gets none: it knows a repeated block by its content.
const (
	revisionInfo = 54420
	revisionOld  = 54031
)

func (c *native) usable() bool { return !c.client.IsClosed() }
func (c *native) close()       { _ = c.client.Close() }

func (c *native) query(ctx context.Context, statement string, n int, settings []ch.Setting) ([][]string, error) {
	return c.rows(ctx, ch.Query{Body: statement, Settings: settings}, n)
}

func (c *native) rows(ctx context.Context, q ch.Query, n int) ([][]string, error) {
	columns := make([]proto.ColStr, n)
	var results proto.Results
	for i := range columns {
		results = append(results, proto.ResultColumn{Data: &columns[i]})
	}
	var rows [][]string
	q.Result = results
	q.OnResult = func(_ context.Context, block proto.Block) error {
		for i := range block.Rows {
			row := make([]string, n)
			for c := range columns {
				row[c] = columns[c].Row(i)
			}
			rows = append(rows, row)
		}
		return nil
	}
	err := c.client.Do(ctx, q)
	return rows, err
}

// partsEvent is the server's count of the parts that an INSERT made, those of materialised views included.
const partsEvent = "MergeTreeDataWriterBlocks"

func (c *native) insert(ctx context.Context, b *block, identity string, settings []ch.Setting) (parts int, err error) {
	until, _ := ctx.Deadline()
	end := b.begin(c.close, until)
	err = c.client.Do(ctx, ch.Query{
		Body:     b.insert + " VALUES",
		QueryID:  queryID(identity),
		Input:    b.input,
		Settings: settings,
		OnProfileEvents: func(_ context.Context, events []ch.ProfileEvent) error {
			for _, e := range events {
				if e.Name == partsEvent {
					parts += int(e.Value)
				}
			}
			return nil
		},
	})
	if changed := end(); changed != nil {
		c.close()
		return 0, changed
	}
	return parts, err
}

func (c *native) ask(ctx context.Context, b *block, query string) ([][]string, error) {
	return c.rows(ctx, ch.Query{
		Body:          query,
		ExternalTable: keysTable,
		ExternalData:  b.input,
		Settings:      readSettings,
	}, 2)
}
