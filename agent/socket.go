package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// The local socket is how commands on the same machine ask the running agent: plain HTTP with JSON, on a Unix socket in the state directory
// that only its owner may open.
//
//	GET  /v1/explain?path=PATH                 an Explanation
//	GET  /v1/positions                         a Positions
//	POST /v1/positions/forget-vanished         {"forgotten": N}
//
// A failure is {"error": TEXT} with a status of 400 and up.
const (
	socketName = "agent.sock"
	// socketDirPrefix begins the name of the directory in which the socket is made.
	socketDirPrefix = "socket-"
	// socketRequestsMax bounds the requests that are served at once; more wait.
	socketRequestsMax = 4
	// socketBodyBytesMax bounds a request, socketAnswerBytesMax what a command takes of an answer.
	socketBodyBytesMax   = 1 << 20
	socketAnswerBytesMax = 256 << 20
	socketHeaderBytesMax = 16 << 10
	socketReadTimeout    = 5 * time.Second
	socketWriteTimeout   = 30 * time.Second
	// socketPathMax is how long a socket's path may be on every system.
	socketPathMax = 100
)

// serveSocket serves the local socket until the returned function is called. Without one the agent works too.
func (a *Agent) serveSocket() (stop func()) {
	listener, err := listenSocket(a.cfg.StateDir)
	if err != nil {
		a.log.Warn("the local socket cannot be made; `sluice explain` and `sluice agent positions` cannot ask this agent", "error", err)
		return func() {}
	}
	srv := &http.Server{
		Handler: limited(a.socketMux()), ReadTimeout: socketReadTimeout, WriteTimeout: socketWriteTimeout, MaxHeaderBytes: socketHeaderBytesMax,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("the local socket has stopped", "error", err)
		}
	}()
	return func() {
		_ = srv.Close() // the requests under way are of no use any more
		<-done
		_ = os.Remove(filepath.Join(a.cfg.StateDir, socketName)) // the next start does it otherwise
	}
}

// listenSocket makes the socket within a directory that nobody else may enter, and moves it to its place when only its owner may open it.
func listenSocket(state string) (net.Listener, error) {
	left, _ := filepath.Glob(filepath.Join(state, socketDirPrefix+"*")) // by one that was killed here
	for _, dir := range left {
		_ = os.RemoveAll(dir)
	}
	dir, err := os.MkdirTemp(state, socketDirPrefix)
	if err != nil {
		return nil, fmt.Errorf("make the local socket: %w", err)
	}
	defer os.RemoveAll(dir)
	addr, release, err := socketAddr(dir)
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: addr, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the local socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	path := filepath.Join(dir, socketName)
	if err := errors.Join(os.Chmod(path, 0o600), os.Rename(path, filepath.Join(state, socketName))); err != nil {
		return nil, errors.Join(fmt.Errorf("make the local socket: %w", err), l.Close())
	}
	return l, nil
}

// socketAddr is the address of the socket in a directory. One that is too long for the system is gone around through the open directory,
// where the system has that way.
func socketAddr(dir string) (addr string, release func(), err error) {
	path := filepath.Join(dir, socketName)
	if len(path) <= socketPathMax {
		return path, func() {}, nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, fmt.Errorf("open the state directory: %w", err)
	}
	around := fmt.Sprintf("/proc/self/fd/%d", d.Fd())
	if _, err := os.Stat(around); err != nil {
		return "", nil, errors.Join(fmt.Errorf("the path of the local socket has %d bytes, more than %d: give the state directory a shorter one (--state)", len(path), socketPathMax), d.Close())
	}
	return filepath.Join(around, socketName), func() { _ = d.Close() }, nil
}

// limited serves a few requests at a time.
func limited(next http.Handler) http.Handler {
	slots := make(chan struct{}, socketRequestsMax)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-req.Context().Done():
			return
		}
		req.Body = http.MaxBytesReader(w, req.Body, socketBodyBytesMax)
		next.ServeHTTP(w, req)
	})
}

func (a *Agent) socketMux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/explain", func(w http.ResponseWriter, req *http.Request) {
		path := req.URL.Query().Get("path")
		if !filepath.IsAbs(path) {
			answer(w, nil, fmt.Errorf("the path %q is not absolute", path))
			return
		}
		e, err := a.Explain(path)
		answer(w, e, err)
	})
	mux.HandleFunc("GET /v1/positions", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.Positions(), nil) })
	mux.HandleFunc("POST /v1/positions/forget-vanished", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, forgotten{a.forgetVanished()}, nil)
	})
	return mux
}

type forgotten struct {
	Forgotten int `json:"forgotten"`
}

type failed struct {
	Error string `json:"error"`
}

func answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		v = failed{err.Error()}
	}
	_ = json.NewEncoder(w).Encode(v) // whoever asked is gone
}

// ErrNotRunning says that no agent runs on a state directory.
var ErrNotRunning = errors.New("no agent runs on the state directory")

// call asks the agent that runs on a state directory.
func call(ctx context.Context, state, method, path string, query url.Values, into any) error {
	addr, release, err := socketAddr(state)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotRunning
	}
	if err != nil {
		return err
	}
	defer release()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", addr)
	}}}
	req, err := http.NewRequestWithContext(ctx, method, (&url.URL{Scheme: "http", Host: "agent", Path: path, RawQuery: query.Encode()}).String(), bytes.NewReader(nil))
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	resp, err := client.Do(req)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return ErrNotRunning
	}
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	defer resp.Body.Close()
	body := json.NewDecoder(io.LimitReader(resp.Body, socketAnswerBytesMax))
	if resp.StatusCode != http.StatusOK {
		var f failed
		if err := body.Decode(&f); err != nil || f.Error == "" {
			return fmt.Errorf("ask the agent: %s", resp.Status)
		}
		return fmt.Errorf("the agent says: %s", f.Error)
	}
	if err := body.Decode(into); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
}
