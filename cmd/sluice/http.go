package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
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

// serveOperator serves /metrics, /healthz and /readyz on addr until ctx ends. An empty addr serves nothing.
func serveOperator(ctx context.Context, log *slog.Logger, addr string, reg *prometheus.Registry, probes []probe) error {
	if addr == "" {
		return nil
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("serve metrics on %s: %w; choose another address with --metrics, or --metrics=\"\" for none", addr, err)
	}
	srv := &http.Server{Handler: operatorMux(reg, probes), ReadHeaderTimeout: readHeaderTimeout}
	log.Info("metrics, health and readiness are served", "url", "http://"+listener.Addr().String())
	go func() {
		if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the metrics endpoint has stopped", "error", err)
		}
	}()
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	return nil
}

func operatorMux(reg *prometheus.Registry, probes []probe) http.Handler {
	mux := http.NewServeMux()
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
