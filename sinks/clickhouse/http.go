package clickhouse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/compress"
	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/internal/connect"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// httpConn speaks ClickHouse's HTTP interface: the same columns as over the native protocol, in the format Native, in the server's own compressed frames.
// The client of the standard library is enough for that; it keeps the connections.
type httpConn struct {
	client   *http.Client
	url      url.URL
	username string
	password string
	codec    pipelines.Compression
}

// errorBytesMax bounds what is read of an error's text.
const errorBytesMax = 16 << 10

// frameBytes is how much of a block goes into one compressed frame.
const frameBytes = 1 << 20

func newHTTPDialer(spec *pipelines.ClickHouse, password string) (dialer, error) {
	scheme := "http"
	tr := &http.Transport{MaxIdleConnsPerHost: idleConnectionsMax, DisableCompression: true}
	if spec.TLS != nil {
		var err error
		if tr.TLSClientConfig, err = connect.TLS(spec.TLS); err != nil {
			return nil, err
		}
		scheme = "https"
	}
	client := &http.Client{Transport: tr}
	return func(ctx context.Context, addr string) (transport, error) {
		c := &httpConn{client: client, url: url.URL{Scheme: scheme, Host: addr, Path: "/"}, username: spec.Username, password: password, codec: compressionTo(addr, spec.Compression)}
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		if _, err := c.query(ctx, "SELECT '1'", 1, nil); err != nil {
			return nil, fmt.Errorf("connect to %s: %w", addr, explainConnect(err, spec.Username))
		}
		return c, nil
	}, nil
}

func (c *httpConn) usable() bool { return true }
func (c *httpConn) close()       {}

// httpError is an answer other than 200.
type httpError struct {
	status  int
	code    proto.Error // 0: it is not the server's own answer
	message string
}

func (e *httpError) Error() string {
	if e.code == 0 {
		return fmt.Sprintf("HTTP %d: %s", e.status, e.message)
	}
	return fmt.Sprintf("code %d: %s", e.code, e.message)
}

func (c *httpConn) do(ctx context.Context, parameters url.Values, contentType string, body io.Reader) ([]byte, error) {
	u := c.url
	u.RawQuery = parameters.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-ClickHouse-User", c.username)
	if c.password != "" {
		req.Header.Set("X-ClickHouse-Key", c.password)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, readHTTPError(resp)
	}
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.Header.Get("X-ClickHouse-Exception-Code") != "" {
		err = &httpError{status: resp.StatusCode, message: string(answer[:min(len(answer), errorBytesMax)])}
	}
	return answer, err
}

func readHTTPError(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, errorBytesMax))
	if err != nil {
		return err
	}
	code, _ := strconv.Atoi(resp.Header.Get("X-ClickHouse-Exception-Code"))
	return &httpError{status: resp.StatusCode, code: proto.Error(code), message: strings.TrimSpace(string(text))}
}

func parametersOf(settings []ch.Setting) url.Values {
	v := url.Values{"wait_end_of_query": {"1"}} // an error after the first byte of an answer would look like its end
	for _, s := range settings {
		if s.Key != "receive_timeout" { // the connection's, not the query's
			v.Set(s.Key, s.Value)
		}
	}
	return v
}

func (c *httpConn) query(ctx context.Context, statement string, n int, settings []ch.Setting) ([][]string, error) {
	if n > 0 {
		statement += " FORMAT JSONCompactEachRow"
	}
	answer, err := c.do(ctx, parametersOf(settings), "", strings.NewReader(statement))
	if err != nil {
		return nil, err
	}
	return readRows(answer, n)
}

func readRows(answer []byte, n int) (rows [][]string, err error) {
	for d := json.NewDecoder(bytes.NewReader(answer)); ; {
		var row []string
		switch err := d.Decode(&row); {
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, fmt.Errorf("read the server's answer: %w", err)
		case len(row) != n:
			return nil, fmt.Errorf("read the server's answer: %d columns, not %d", len(row), n)
		}
		rows = append(rows, row)
	}
}

// insert looks at the columns' types first: in this format the server converts what was made for other types, and wraps what does not fit.
func (c *httpConn) insert(ctx context.Context, b *block, identity string, settings []ch.Setting) (parts int, err error) {
	if err := c.sameTypes(ctx, b.table); err != nil {
		return 0, err
	}
	p := parametersOf(settings)
	p.Set("query", b.insert+" FORMAT Native")
	p.Set("query_id", queryID(identity))
	body, err := c.body(b, p)
	if err != nil {
		return 0, err
	}
	_, err = c.do(ctx, p, "", bytes.NewReader(body))
	return 0, err
}

func (c *httpConn) sameTypes(ctx context.Context, t *table) error {
	rows, err := c.query(ctx, "SELECT name, type FROM system.columns WHERE database = "+quoteString(t.database)+" AND table = "+quoteString(t.table), 2, nil)
	if err != nil {
		return err
	}
	types := make(map[string]string, len(rows))
	for _, row := range rows {
		types[row[0]] = row[1]
	}
	for _, w := range t.written {
		if types[w.name] != w.typ {
			return fmt.Errorf("column %s is %q and was %q: %w", w.name, types[w.name], w.typ, sinks.ErrSchemaChanged)
		}
	}
	return nil
}

// body is the block in the format Native, and in the server's frames unless compression is off.
func (c *httpConn) body(b *block, p url.Values) ([]byte, error) {
	plain, err := nativeFormat(b)
	if err != nil || c.codec == pipelines.CompressionNone {
		return plain, err
	}
	method := compress.LZ4
	if c.codec == pipelines.CompressionZstd {
		method = compress.ZSTD
	}
	w := compress.NewWriter(compress.LevelZero, method)
	var out []byte
	for len(plain) > 0 {
		n := min(len(plain), frameBytes)
		if err := w.Compress(plain[:n]); err != nil {
			return nil, fmt.Errorf("compress: %w", err)
		}
		out = append(out, w.Data...)
		plain = plain[n:]
	}
	p.Set("decompress", "1")
	return out, nil
}

// nativeFormat is the block as the format Native has it without a protocol version.
func nativeFormat(b *block) ([]byte, error) {
	var buf proto.Buffer
	err := proto.Block{Columns: len(b.input), Rows: b.rows}.EncodeRawBlock(&buf, 0, b.input)
	return buf.Buf, err
}

func (c *httpConn) ask(ctx context.Context, b *block, query string) ([][]string, error) {
	plain, err := nativeFormat(b)
	if err != nil {
		return nil, err
	}
	structure := make([]string, len(b.input))
	for i, column := range b.input {
		structure[i] = quoteName(column.Name) + " " + string(column.Data.Type())
	}
	var form bytes.Buffer
	m := multipart.NewWriter(&form)
	part, err := m.CreateFormFile(keysTable, keysTable)
	if err != nil {
		return nil, err
	}
	if _, err := part.Write(plain); err != nil {
		return nil, err
	}
	if err := m.Close(); err != nil {
		return nil, err
	}
	p := parametersOf(readSettings)
	p.Set("query", query+" FORMAT JSONCompactEachRow")
	p.Set(keysTable+"_format", "Native")
	p.Set(keysTable+"_structure", strings.Join(structure, ", "))
	answer, err := c.do(ctx, p, m.FormDataContentType(), &form)
	if err != nil {
		return nil, err
	}
	return readRows(answer, 2)
}
