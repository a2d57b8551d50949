// Package apifake is an API server of Kubernetes as far as lists and watches of pods go: for tests, and for faults that a real one cannot be
// made to have at will. It keeps a history of changes, so that a watch begins at any resource version that is not forgotten, answers lists in
// pages, sends bookmarks, and says 410 Gone both ways in which real ones do.
package apifake

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Pod is a pod as a test makes it.
type Pod struct {
	Namespace, Name, UID, Node string
	Labels, Annotations        map[string]string
	Owner                      [2]string // kind and name of what made it
	Container                  string    // RUNTIME://ID of its one container
}

// change is one of the history.
type change struct {
	version int
	kind    string // ADDED, MODIFIED or DELETED
	pod     Pod
	at      int // version of the object
}

// Server is the API server. Safe for concurrent use.
type Server struct {
	// URL is where it is.
	URL string

	srv *httptest.Server

	mu          sync.Mutex
	version     int               // guarded by mu
	pods        map[string]stored // guarded by mu: by namespace and name
	history     []change          // guarded by mu
	oldest      int               // guarded by mu: changes up to this version are forgotten
	dropped     int               // guarded by mu: version of the last change that is forgotten
	moved       chan struct{}     // guarded by mu: closed at each change
	cut         chan struct{}     // guarded by mu: closed to cut connections
	token       string            // guarded by mu: "" takes any
	refuse      int               // guarded by mu: status that is answered to everything; 0: none
	page        int               // guarded by mu: objects of a page, whatever is asked for
	stall       chan struct{}     // guarded by mu: closed when answers may go on; nil: they may
	goneAsEvent bool              // guarded by mu
	bookmarks   chan struct{}     // guarded by mu: closed to send bookmarks
	requests    []string          // guarded by mu: as they came
}

type stored struct {
	pod     Pod
	version int
}

// New starts a server. secure has it speak TLS.
func New(secure bool) *Server {
	s := &Server{version: 1000, oldest: 1000, pods: map[string]stored{}, moved: make(chan struct{}), cut: make(chan struct{}), bookmarks: make(chan struct{})}
	s.srv = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	if secure {
		s.srv.EnableHTTP2 = true
		s.srv.StartTLS()
	} else {
		s.srv.Start()
	}
	s.URL = s.srv.URL
	return s
}

// Certificate is what the server's certificate is checked by, in PEM.
func (s *Server) Certificate() []byte {
	der := base64.StdEncoding.EncodeToString(s.srv.Certificate().Raw)
	return []byte("-----BEGIN CERTIFICATE-----\n" + der + "\n-----END CERTIFICATE-----\n")
}

// Close stops the server.
func (s *Server) Close() {
	s.change(func() { s.refuse = http.StatusServiceUnavailable; s.resume() })
	s.Cut()
	s.srv.Close()
}

func (s *Server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Set makes a pod, or changes it.
func (s *Server) Set(p Pod) {
	s.change(func() {
		key := p.Namespace + "/" + p.Name
		kind := "MODIFIED"
		if old, ok := s.pods[key]; !ok || old.pod.UID != p.UID {
			kind = "ADDED"
		}
		s.version++
		s.pods[key] = stored{p, s.version}
		s.add(change{s.version, kind, p, s.version})
	})
}

// Delete removes a pod.
func (s *Server) Delete(namespace, name string) {
	s.change(func() {
		key := namespace + "/" + name
		p, ok := s.pods[key]
		if !ok {
			return
		}
		s.version++
		delete(s.pods, key)
		s.add(change{s.version, "DELETED", p.pod, s.version})
	})
}

// add needs mu.
func (s *Server) add(c change) {
	s.history = append(s.history, c)
	close(s.moved)
	s.moved = make(chan struct{})
}

// Forget drops the history: what began before cannot be watched on, and the next pages of lists are gone. asEvent has watches say so in an
// event of type ERROR instead of a status.
func (s *Server) Forget(asEvent bool) {
	s.change(func() {
		if n := len(s.history); n > 0 {
			s.dropped = s.history[n-1].version
		}
		s.version++ // of something else than pods
		s.history, s.oldest, s.goneAsEvent = nil, s.version, asEvent
	})
}

// Cut breaks all connections of watches, within an object where one is on its way.
func (s *Server) Cut() {
	s.change(func() {
		close(s.cut)
		s.cut = make(chan struct{})
	})
}

// Bookmark has all watches that asked for them be told where they are.
func (s *Server) Bookmark() {
	s.change(func() {
		s.version++
		close(s.bookmarks)
		s.bookmarks = make(chan struct{})
	})
}

// Refuse answers everything with a status; 0 ends it.
func (s *Server) Refuse(status int) { s.change(func() { s.refuse = status }) }

// Require takes no other token.
func (s *Server) Require(token string) { s.change(func() { s.token = token }) }

// Page gives lists no more objects a page, whatever is asked for.
func (s *Server) Page(n int) { s.change(func() { s.page = n }) }

// Stall answers nothing until Resume.
func (s *Server) Stall() { s.change(func() { s.stall = make(chan struct{}) }) }

// Resume ends a Stall.
func (s *Server) Resume() { s.change(s.resume) }

// resume needs mu.
func (s *Server) resume() {
	if s.stall != nil {
		close(s.stall)
		s.stall = nil
	}
}

// Requests are the queries that came, in order.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, req.URL.RawQuery)
	refuse, token, stall := s.refuse, s.token, s.stall
	s.mu.Unlock()
	if stall != nil {
		select {
		case <-stall:
		case <-req.Context().Done():
			return
		}
	}
	node, ok := strings.CutPrefix(req.URL.Query().Get("fieldSelector"), "spec.nodeName=")
	switch {
	case refuse != 0:
		w.Header().Set("Retry-After", "0")
		status(w, refuse, http.StatusText(refuse), "as the test says")
	case token != "" && req.Header.Get("Authorization") != "Bearer "+token:
		status(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
	case req.Method != http.MethodGet || req.URL.Path != "/api/v1/pods" || !ok:
		status(w, http.StatusNotFound, "NotFound", req.Method+" "+req.URL.String())
	case req.URL.Query().Get("watch") == "1":
		s.watch(w, req, node)
	default:
		s.list(w, req, node)
	}
}

func status(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(statusOf(code, reason, message)) // whoever asked is gone
}

func statusOf(code int, reason, message string) map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure", "code": code, "reason": reason, "message": message}
}

// objectOf is a pod as a real server tells it, as far as anybody looks.
func objectOf(p *Pod, version int) map[string]any {
	meta := map[string]any{"name": p.Name, "namespace": p.Namespace, "uid": p.UID, "resourceVersion": strconv.Itoa(version), "creationTimestamp": "2026-11-30T10:00:00Z"}
	if len(p.Labels) > 0 {
		meta["labels"] = p.Labels
	}
	if len(p.Annotations) > 0 {
		meta["annotations"] = p.Annotations
	}
	if p.Owner[0] != "" {
		meta["ownerReferences"] = []any{map[string]any{"apiVersion": "apps/v1", "kind": p.Owner[0], "name": p.Owner[1], "uid": "o", "controller": true, "blockOwnerDeletion": true}}
	}
	state := map[string]any{"phase": "Running"}
	if p.Container != "" {
		state["containerStatuses"] = []any{map[string]any{"name": "app", "ready": true, "containerID": p.Container}}
	}
	return map[string]any{
		"metadata": meta, "status": state,
		"spec": map[string]any{"nodeName": p.Node, "containers": []any{map[string]any{"name": "app", "image": "app:1"}}},
	}
}

// A token of a list that goes on is VERSION/KEY.
func (s *Server) list(w http.ResponseWriter, req *http.Request, node string) {
	query := req.URL.Query()
	s.mu.Lock()
	version, after := s.version, ""
	expired := false
	if token := query.Get("continue"); token != "" {
		text, err := base64.StdEncoding.DecodeString(token)
		at, key, _ := strings.Cut(string(text), " ")
		if err == nil {
			version, err = strconv.Atoi(at)
		}
		if err != nil || query.Has("resourceVersion") {
			s.mu.Unlock()
			status(w, http.StatusBadRequest, "BadRequest", "continue")
			return
		}
		after, expired = key, version < s.oldest
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	if s.page > 0 {
		limit = s.page
	}
	items, more := []any{}, ""
	for _, key := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[key]
		if p.pod.Node != node || key <= after {
			continue
		}
		if limit > 0 && len(items) == limit {
			more = base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", version, after))
			break
		}
		items, after = append(items, objectOf(&p.pod, p.version)), key
	}
	s.mu.Unlock()
	if expired {
		status(w, http.StatusGone, "Expired", "The provided continue parameter is too old")
		return
	}
	meta := map[string]any{"resourceVersion": strconv.Itoa(version)}
	if more != "" {
		meta["continue"] = more
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items}) // whoever asked is gone
}

// watching is a watch under way.
type watching struct {
	w         http.ResponseWriter
	node      string
	version   int
	bookmarks bool
}

func (s *Server) watch(w http.ResponseWriter, req *http.Request, node string) {
	query := req.URL.Query()
	version, err := strconv.Atoi(query.Get("resourceVersion"))
	if err != nil {
		status(w, http.StatusBadRequest, "BadRequest", "resourceVersion")
		return
	}
	s.mu.Lock()
	gone, asEvent, cut := version < s.oldest, s.goneAsEvent, s.cut
	s.mu.Unlock()
	if gone && !asEvent {
		status(w, http.StatusGone, "Expired", fmt.Sprintf("too old resource version: %d", version))
		return
	}
	x := &watching{w: w, node: node, version: version, bookmarks: query.Get("allowWatchBookmarks") == "true"}
	w.Header().Set("Content-Type", "application/json")
	x.flush()
	if gone {
		x.send("ERROR", statusOf(http.StatusGone, "Expired", fmt.Sprintf("too old resource version: %d", version)))
		return
	}
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	over := time.NewTimer(time.Duration(max(seconds, 1)) * time.Second)
	defer over.Stop()
	for {
		moved, bookmarks := s.tell(x, false)
		if moved == nil {
			return
		}
		select {
		case <-moved:
		case <-bookmarks:
			s.tell(x, x.bookmarks)
		case <-cut:
			_, _ = w.Write([]byte(`{"type":"MODIFIED","object":{"metadata":{"na`)) // it is cut within
			x.flush()
			panic(http.ErrAbortHandler)
		case <-over.C:
			return
		case <-req.Context().Done():
			return
		}
	}
}

// tell sends what changed, with mark a bookmark behind it, and returns what is closed when there is more. A watch that was too slow, so that
// changes were forgotten before it was told, is ended; then it returns nothing.
func (s *Server) tell(x *watching, mark bool) (moved, bookmarks chan struct{}) {
	s.mu.Lock()
	changes, version, moved, bookmarks := slices.Clone(s.history), s.version, s.moved, s.bookmarks
	late := x.version < s.dropped
	s.mu.Unlock()
	if late {
		x.send("ERROR", statusOf(http.StatusGone, "Expired", "The resourceVersion for the provided watch is too old."))
		return nil, nil
	}
	for _, c := range changes {
		if c.version > x.version {
			x.version = c.version
			if c.pod.Node == x.node {
				x.send(c.kind, objectOf(&c.pod, c.at))
			}
		}
	}
	if mark {
		x.version = version
		x.send("BOOKMARK", map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": strconv.Itoa(version), "creationTimestamp": nil}})
	}
	return moved, bookmarks
}

func (x *watching) send(kind string, object map[string]any) {
	_ = json.NewEncoder(x.w).Encode(map[string]any{"type": kind, "object": object}) // whoever watched is gone
	x.flush()
}

func (x *watching) flush() {
	if f, ok := x.w.(http.Flusher); ok {
		f.Flush()
	}
}
