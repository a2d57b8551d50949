package hdfs

import (
	"fmt"
	"log/slog"
	"os/user"
	"strings"

	"github.com/colinmarc/hdfs/v2"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks/directory"
)

// New makes the sink of spec.HDFS. Nothing is connected to before Check.
func New(log *slog.Logger, spec *pipelines.SinkSpec) (*directory.Sink, error) {
	cfg := spec.HDFS
	server := "hdfs://" + strings.Join(cfg.NameNodes, ",") + cfg.Path
	f, err := NewFS(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", server, err)
	}
	return directory.NewOn(log, spec, server, f.open)
}

// open makes the root if need be, and with Kerberos tries whether blocks can be read.
func (f *FS) open() (directory.FS, error) {
	err := f.use(func(client *hdfs.Client) error { return client.MkdirAll(f.root, f.cfg.DirMode) })
	if err == nil && f.cfg.Kerberos != nil {
		err = f.probe()
	}
	return f, err
}

// userOf is the user that acts in the HDFS.
func userOf(cfg *pipelines.HDFS) (string, error) {
	if cfg.User != "" || cfg.Kerberos != nil {
		return cfg.User, nil
	}
	u, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("find out who runs this process (user: names another): %w", err)
	}
	return u.Username, nil
}
