package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// readHeaderTimeout bounds how long a client of the operator's endpoint may take to say what it wants.
const readHeaderTimeout = 5 * time.Second

// A probe is a role's own word on whether it does its work; the error says what it waits for.
type probe struct {
	name  string
	ready func() error
}

// newRegistry returns a registry with the process's and the runtime's own metrics.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// operatorPort is where operators look: taken before anything starts, so that nothing says it is ready and then
// fails for want of it. Its zero value is none.
type operatorPort struct{ listener net.Listener }

// takeOperatorPort binds addr; an empty one is none.
func takeOperatorPort(addr string) (operatorPort, error) {
	if addr == "" {
		return operatorPort{}, nil
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return operatorPort{}, fmt.Errorf("serve metrics on %s: %w; choose another address with --metrics, or --metrics=\"\" for none", addr, err)
	}
	return operatorPort{listener}, nil
}

// serve serves /metrics, /healthz, /readyz and what a role has beside, until ctx ends.
func (p operatorPort) serve(ctx context.Context, log *slog.Logger, reg *prometheus.Registry, probes []probe, more ...page) {
	if p.listener == nil {
		return
	}
	srv := &http.Server{Handler: operatorMux(reg, probes, more), ReadHeaderTimeout: readHeaderTimeout}
	log.Info("metrics, health and readiness are served", "url", "http://"+p.listener.Addr().String())
	go func() {
		if err := srv.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			log.Error("the metrics endpoint has stopped", "error", err)
		}
	}()
	context.AfterFunc(ctx, func() { _ = srv.Close() })
}

// release gives the port back; it may be served or not.
func (p operatorPort) release() {
	if p.listener != nil {
		_ = p.listener.Close()
	}
}

// A page is what a role serves beside.
type page struct {
	path    string
	handler http.HandlerFunc
}

// profilePages are the runtime's own profiles, for `go tool pprof`.
var profilePages = []page{{"/debug/pprof/", pprof.Index}, {"/debug/pprof/profile", pprof.Profile}, {"/debug/pprof/trace", pprof.Trace}}

func operatorMux(reg *prometheus.Registry, probes []probe, more []page) http.Handler {
	mux := http.NewServeMux()
	for _, p := range more {
		mux.HandleFunc(p.path, p.handler)
	}
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		var waiting []error
		for _, p := range probes {
			if err := p.ready(); err != nil {
				waiting = append(waiting, fmt.Errorf("%s: %w", p.name, err))
			}
		}
		if err := errors.Join(waiting...); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}
