package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/pipelines"
)

// watchInterval is the time between two looks at the pipeline files with --watch-config. A change is taken when it has stood still for one.
const watchInterval = time.Second

// hangups are SIGHUPs. One that comes while a reload is under way is kept, and leads to another.
type hangups struct{ c chan os.Signal }

// catchHangups is called before anything starts: SIGHUP ends a process that does not catch it.
func catchHangups() hangups {
	h := hangups{make(chan os.Signal, 1)}
	signal.Notify(h.c, syscall.SIGHUP)
	return h
}

func (h hangups) release() { signal.Stop(h.c) }

// reloader has a role take its pipeline files again, on SIGHUP and, if they are watched, when they change.
type reloader struct {
	log   *slog.Logger
	files []string
	// apply takes what the files hold now. After an error the old pipelines go on, as far as it does not say otherwise.
	apply   func([]*pipelines.Pipeline) error
	watched bool
	every   time.Duration // 0: watchInterval

	reloads *prometheus.CounterVec
	good    prometheus.Gauge
	last    prometheus.Gauge
}

func newReloader(log *slog.Logger, reg prometheus.Registerer, files []string, watched bool, apply func([]*pipelines.Pipeline) error) *reloader {
	r := &reloader{
		log: log, files: files, apply: apply, watched: watched,
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_config_reloads_total",
			Help: "Times the pipeline files were taken again, or refused."}, []string{"result"}),
		good: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_config_last_reload_successful",
			Help: "1 when the pipeline files were taken the last time, or never taken again; 0 when they were refused."}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_config_last_reload_success_timestamp_seconds",
			Help: "When the pipeline files were last taken, at the start or since."}),
	}
	for _, result := range []string{"success", "failure"} {
		r.reloads.WithLabelValues(result)
	}
	r.good.Set(1)
	r.last.SetToCurrentTime()
	reg.MustRegister(r.reloads, r.good, r.last)
	return r
}

// run reloads until ctx ends.
func (r *reloader) run(ctx context.Context, hup hangups) {
	var changed <-chan time.Time
	if r.watched {
		every := r.every
		if every == 0 {
			every = watchInterval
		}
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		changed = ticker.C
	}
	taken := signature(r.files)
	seen := taken
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup.c:
			taken = signature(r.files)
			r.reload("SIGHUP")
		case <-changed:
			now := signature(r.files)
			if still := now == seen; still && now != taken {
				taken = now
				r.reload("the files changed")
			}
			seen = now
		}
	}
}

// reload takes the files again. What is wrong with them is said with line and column.
func (r *reloader) reload(why string) {
	pipes, err := loadPipelines(r.files)
	if err == nil {
		err = r.apply(pipes)
	}
	if err != nil {
		r.reloads.WithLabelValues("failure").Inc()
		r.good.Set(0)
		r.log.Error("the pipeline files are not taken; what ran before goes on", "because", why, "error", err)
		return
	}
	r.reloads.WithLabelValues("success").Inc()
	r.good.Set(1)
	r.last.SetToCurrentTime()
	r.log.Info("the pipeline files are taken", "because", why, "pipelines", len(pipes))
}

// signature tells whether files, or those in directories, are as they were. Links are followed: a ConfigMap is switched by one.
func signature(files []string) string {
	var b strings.Builder
	for _, path := range files {
		info, err := os.Stat(path)
		if err == nil && info.IsDir() {
			for _, ext := range []string{"*.yaml", "*.yml"} {
				names, _ := filepath.Glob(filepath.Join(path, ext)) // the pattern is good
				for _, name := range names {
					sign(&b, name)
				}
			}
			continue
		}
		sign(&b, path)
	}
	return b.String()
}

func sign(b *strings.Builder, path string) {
	info, err := os.Stat(path)
	if err != nil {
		fmt.Fprintf(b, "%s -\n", path)
		return
	}
	var ino uint64
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		ino = st.Ino
	}
	fmt.Fprintf(b, "%s %d %d %d\n", path, ino, info.Size(), info.ModTime().UnixNano())
}
