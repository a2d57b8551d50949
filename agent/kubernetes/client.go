package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// pageObjects is how many pods a page of a list is asked to have.
	pageObjects = 250
	// pageBytesMax bounds such a page, objectBytesMax one object: etcd takes none of more than 1.5 MB, which JSON may make longer.
	pageBytesMax   = 256 << 20
	objectBytesMax = 8 << 20
	// pagesMax bounds the pages of one list.
	pagesMax = 1000
	// failureBytesMax bounds what is read of an answer that says why not.
	failureBytesMax = 64 << 10
	// tokenBytesMax bounds a token.
	tokenBytesMax = 64 << 10
	// retryAfterMax bounds the pause that a server asks for.
	retryAfterMax = time.Minute
	// watchGrace is how long after its time a watch may still live before it is taken for dead.
	watchGrace = 30 * time.Second
	// pingAfter is the quiet on a connection after which it is asked whether it lives, pingTimeout how long that may take.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
	// idleConnTimeout closes a connection that nothing is asked on.
	idleConnTimeout = 90 * time.Second
)

// client asks the API server. Not safe for concurrent use.
type client struct {
	cfg  Config
	ca   []byte // what the transport was made of
	http *http.Client
}

// list hands over all pods of the node, and returns the resource version that they are of. With cached the server may answer from its
// cache, which is cheap, and may be a little behind.
func (c *client) list(ctx context.Context, cached bool, take func(*object)) (version string, err error) {
	query := c.query()
	query.Set("limit", strconv.Itoa(pageObjects))
	if cached {
		query.Set("resourceVersion", "0")
	}
	for range pagesMax {
		var more string
		if version, more, err = c.page(ctx, query, take); err != nil || more == "" {
			return version, err
		}
		query.Set("continue", more)
		query.Del("resourceVersion") // the token tells it
	}
	return "", fmt.Errorf("list the pods of node %s: more than %d pages", c.cfg.Node, pagesMax)
}

func (c *client) query() url.Values {
	return url.Values{"fieldSelector": {"spec.nodeName=" + c.cfg.Node}}
}

func (c *client) page(ctx context.Context, query url.Values, take func(*object)) (version, more string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	resp, err := c.get(ctx, query)
	if err != nil {
		return "", "", fmt.Errorf("list the pods of node %s: %w", c.cfg.Node, err)
	}
	defer resp.Body.Close()
	if version, more, err = readList(io.LimitReader(resp.Body, pageBytesMax), take); err != nil {
		return "", "", fmt.Errorf("read the list of pods: %w", err)
	}
	return version, more, nil
}

// readList reads a list one object at a time, so that it takes the memory of one.
func readList(r io.Reader, take func(*object)) (version, more string, err error) {
	d := json.NewDecoder(r)
	if err := expect(d, json.Delim('{')); err != nil {
		return "", "", err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return "", "", err
		}
		switch key {
		case "metadata":
			var m struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			}
			err = d.Decode(&m)
			version, more = m.ResourceVersion, m.Continue
		case "items":
			err = readItems(d, take)
		default:
			var other json.RawMessage
			err = d.Decode(&other)
		}
		if err != nil {
			return "", "", err
		}
	}
	if err := expect(d, json.Delim('}')); err != nil {
		return "", "", err
	}
	if version == "" {
		return "", "", errors.New("it has no resource version")
	}
	return version, more, nil
}

func readItems(d *json.Decoder, take func(*object)) error {
	first, err := d.Token()
	if err != nil || first == nil { // null: none
		return err
	}
	for d.More() {
		var o object
		if err := d.Decode(&o); err != nil {
			return err
		}
		take(&o)
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%v where %v should be", got, want)
	}
	return err
}

// event is one change that a watch tells.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// The types of events.
const (
	eventAdded    = "ADDED"
	eventModified = "MODIFIED"
	eventDeleted  = "DELETED"
	eventBookmark = "BOOKMARK"
	eventError    = "ERROR"
)

// watch hands over what changes after a resource version until the server ends it, and returns nil then.
func (c *client) watch(ctx context.Context, version string, live time.Duration, opened func(), take func(kind string, o *object)) error {
	ctx, cancel := context.WithTimeout(ctx, live+watchGrace)
	defer cancel()
	query := c.query()
	query.Set("watch", "1")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", version)
	query.Set("timeoutSeconds", strconv.Itoa(max(int(live.Seconds()), 1)))
	resp, err := c.get(ctx, query)
	if err != nil {
		return fmt.Errorf("watch the pods of node %s: %w", c.cfg.Node, err)
	}
	defer resp.Body.Close()
	opened()
	in := &metered{r: resp.Body}
	d := json.NewDecoder(in)
	for {
		in.left = objectBytesMax
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the watch of pods: %w", err)
		}
		if err := handEvent(&e, take); err != nil {
			return err
		}
	}
}

func handEvent(e *event, take func(kind string, o *object)) error {
	switch e.Type {
	case eventAdded, eventModified, eventDeleted, eventBookmark:
		var o object
		if err := json.Unmarshal(e.Object, &o); err != nil {
			return fmt.Errorf("read the watch of pods: %w", err)
		}
		take(e.Type, &o)
		return nil
	case eventError:
		f := &failure{}
		if err := json.Unmarshal(e.Object, f); err != nil {
			return fmt.Errorf("read the watch of pods: %w", err)
		}
		return fmt.Errorf("watch the pods: %w", f)
	}
	return fmt.Errorf("read the watch of pods: an event of type %q, which this version does not know", e.Type)
}

// metered fails when more is read than it is allowed: a single object that never ends.
type metered struct {
	r    io.Reader
	left int
}

// Read implements io.Reader.
func (m *metered) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, fmt.Errorf("an event has more than %d bytes", objectBytesMax)
	}
	n, err := m.r.Read(p[:min(len(p), m.left)])
	m.left -= n
	return n, err
}

// get asks for pods. An answer other than 200 is an error.
func (c *client) get(ctx context.Context, query url.Values) (*http.Response, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.cfg.URL, "/")+"/api/v1/pods?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "sluice-agent")
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, failureOf(resp)
}

// failureOf reads why the server did not do it: a Status, or what stands between it and us says.
func failureOf(resp *http.Response) *failure {
	body, err := io.ReadAll(io.LimitReader(resp.Body, failureBytesMax))
	f := &failure{}
	if err != nil || json.Unmarshal(body, f) != nil || f.Code == 0 {
		f = &failure{Message: strings.ToValidUTF8(string(body[:min(len(body), 200)]), "?"), Reason: http.StatusText(resp.StatusCode)}
	}
	f.Code = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		f.retryAfter = min(time.Duration(seconds)*time.Second, retryAfterMax)
	}
	return f
}

// token reads the token, which is renewed from time to time.
func (c *client) token() (string, error) {
	if c.cfg.TokenFile == "" {
		return "", nil
	}
	f, err := os.Open(c.cfg.TokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token (kubernetes.token_file): %w", err)
	}
	defer f.Close() // only read from
	text, err := io.ReadAll(io.LimitReader(f, tokenBytesMax))
	if err != nil {
		return "", fmt.Errorf("read the token (kubernetes.token_file): %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("the token file %s (kubernetes.token_file) is empty", c.cfg.TokenFile)
	}
	return token, nil
}

// connect sees to a transport that trusts what the certificate file holds now.
func (c *client) connect() error {
	var ca []byte
	if c.cfg.CAFile != "" {
		var err error
		if ca, err = os.ReadFile(c.cfg.CAFile); err != nil {
			return fmt.Errorf("read the certificates of the API server (kubernetes.ca_file): %w", err)
		}
	}
	if c.http != nil && bytes.Equal(ca, c.ca) {
		return nil
	}
	trusted := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.cfg.CAFile != "" {
		trusted.RootCAs = x509.NewCertPool()
		if !trusted.RootCAs.AppendCertsFromPEM(ca) {
			return fmt.Errorf("%s (kubernetes.ca_file) holds no certificate in PEM", c.cfg.CAFile)
		}
	}
	c.close()
	c.ca = ca
	c.http = &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: trusted, ForceAttemptHTTP2: true, TLSHandshakeTimeout: c.cfg.RequestTimeout,
		ResponseHeaderTimeout: c.cfg.RequestTimeout, IdleConnTimeout: idleConnTimeout,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}}
	return nil
}

func (c *client) close() {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}
