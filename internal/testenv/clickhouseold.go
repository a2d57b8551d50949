package testenv

import (
	"context"
	"embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
)

//go:embed clickhouseold
var oldClickHouseFiles embed.FS

var oldClickHouseTemplates = template.Must(template.ParseFS(oldClickHouseFiles, "clickhouseold/*.xml"))

// oldClickHousePart is the ClickHouse that Debian has, whose replicated tables
// work with a ZooKeeper.
var oldClickHousePart = Part{
	Name:    "clickhouse-old",
	Version: "18.16.1",
	From:    "apt-get",
	toFetch: []string{"apt-get", "dpkg-deb"},
	fetch: func(ctx context.Context, dir, version string) error {
		return fetchDebian(ctx, dir, "clickhouse-server="+version+"*", "clickhouse-common="+version+"*",
			"libcapnp-0.9.2", "libcctz2", "libcpuinfo0", "libdouble-conversion3", "libfarmhash0", "libjemalloc2", "libmariadb3", "libmetrohash1",
			"libpocodata80", "libpocodataodbc80", "libpocofoundation80", "libpocomongodb80", "libpoconet80", "libpoconetssl80", "libpocoutil80", "libpocoxml80",
			"libpocojson80", "libpococrypto80", "libodbc2", "libltdl7", "libpcre3", "librdkafka1", "libre2-9", "libboost-filesystem1.74.0", "libboost-program-options1.74.0")
	},
}

// OldClickHouse is a replica of an old ClickHouse. It speaks the native protocol only.
type OldClickHouse struct {
	Addr string // host:port of the native protocol
	again
}

// ClickHouseReplicas starts n servers whose tables replicate each other through
// the ZooKeeper at host:port, in a chroot of their own. profile is XML of settings
// that all queries have: the servers take none with a query.
func ClickHouseReplicas(t testing.TB, zooKeeper string, n int, profile ...string) []*OldClickHouse {
	t.Helper()
	parts := need(t, oldClickHousePart)
	host, port, err := net.SplitHostPort(zooKeeper)
	if err != nil || host != "127.0.0.1" {
		t.Fatalf("ZooKeeper at %s: %v", zooKeeper, err)
	}
	chroot := fmt.Sprintf("/clickhouse-%d-%d", os.Getpid(), FreePort(t))
	makeChroot(t, zooKeeper+chroot)
	var servers []*OldClickHouse
	for replica := range n {
		s := &OldClickHouse{again: again{Dir: t.TempDir()}}
		native := FreePort(t)
		s.Addr = fmt.Sprintf("127.0.0.1:%d", native)
		config := map[string]any{"Dir": s.Dir, "NativePort": native, "InterserverPort": FreePort(t), "ZooKeeperPort": port, "Chroot": chroot, "Replica": replica, "Profile": strings.Join(profile, "")}
		writeClickHouseConfig(t, oldClickHouseTemplates, s.Dir, config)
		s.command = Command{
			Name: "clickhouse-old",
			Path: filepath.Join(parts, "usr/sbin/clickhouse-server"),
			Args: []string{"--config-file=" + filepath.Join(s.Dir, "config.xml")},
			Env:  []string{"LD_LIBRARY_PATH=" + libraryPath(parts)},
			Dir:  s.Dir,
			Ready: func(ctx context.Context) error {
				var d net.Dialer
				conn, err := d.DialContext(ctx, "tcp", s.Addr)
				if err != nil {
					return err
				}
				return conn.Close()
			},
		}
		s.start(t)
		t.Cleanup(func() { s.Kill() })
		servers = append(servers, s)
	}
	return servers
}

// libraryPath is where Debian's packages put their libraries, before and after
// /lib became a link.
func libraryPath(parts string) string {
	var dirs []string
	for _, pattern := range []string{"usr/lib/*-linux-gnu", "lib/*-linux-gnu"} {
		found, _ := filepath.Glob(filepath.Join(parts, pattern)) // the pattern is good
		dirs = append(dirs, found...)
	}
	return strings.Join(dirs, ":")
}
