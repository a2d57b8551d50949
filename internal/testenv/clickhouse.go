package testenv

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"text/template"
	"time"
)

// clickHouseLibrary is the file of the npm package that holds the server.
const clickHouseLibrary = "libchdb.so"

//go:embed clickhouse
var clickHouseFiles embed.FS

var clickHouseTemplates = template.Must(template.ParseFS(clickHouseFiles, "clickhouse/*.xml"))

// clickHousePart is chdb, ClickHouse as a library, whose full server the
// program chserver runs.
var clickHousePart = Part{
	Name:    "clickhouse",
	Version: "26.7.3-stable.1",
	From:    "npm",
	toFetch: []string{"npm"},
	fetch:   fetchClickHouse,
}

// npmPlatforms name the npm package for GOOS/GOARCH.
var npmPlatforms = map[string]string{
	"linux/amd64":  "@chdb/lib-linux-x64-gnu",
	"linux/arm64":  "@chdb/lib-linux-arm64-gnu",
	"darwin/amd64": "@chdb/lib-darwin-x64",
	"darwin/arm64": "@chdb/lib-darwin-arm64",
}

func fetchClickHouse(ctx context.Context, dir, version string) error {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	pkg, ok := npmPlatforms[platform]
	if !ok {
		return fmt.Errorf("there is no chdb for %s", platform)
	}
	if err := runIn(ctx, dir, "npm", "pack", "--silent", pkg+"@"+version); err != nil {
		return err
	}
	packed, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(packed) != 1 {
		return fmt.Errorf("npm pack left %d packages in %s", len(packed), dir)
	}
	if err := unpackOne(packed[0], clickHouseLibrary, filepath.Join(dir, clickHouseLibrary)); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(packed[0]), err)
	}
	return os.Remove(packed[0])
}

// unpackOne writes the file named base of a .tgz to a file.
func unpackOne(tgz, base, to string) error {
	f, err := os.Open(tgz)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("no %s in it", base)
		}
		if err != nil {
			return err
		}
		if path.Base(h.Name) == base {
			return writeFrom(to, r)
		}
	}
}

func writeFrom(file string, r io.Reader) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

var chserver = binary{pkg: "./internal/testenv/chserver"}

// ClickHouseConfig says what is particular about a server; its zero value gives
// one with the user default, who has no password.
type ClickHouseConfig struct {
	Users []ClickHouseUser // beside default
	// UsersXML, if not empty, is the whole file of users, profiles and quotas.
	UsersXML string
	// Shards are native addresses, host:port, of servers that with this one make
	// up the cluster "shards".
	Shards []string
	// DiskBytes, above zero, puts its data on a file system of that size, which
	// FillDisk fills. Only where CanMount.
	DiskBytes int64
}

// ClickHouseUser may do all, or only read.
type ClickHouseUser struct {
	Name, Password string
	ReadOnly       bool
}

// ClickHouseServer is a ClickHouse server of its own process and directory.
type ClickHouseServer struct {
	Addr     string // host:port of the native protocol
	HTTPAddr string // host:port of the HTTP interface
	again
}

// ClickHouse starts a ClickHouse server for t. It takes about 0.3 s and 210 MB.
func ClickHouse(t testing.TB) *ClickHouseServer {
	t.Helper()
	return StartClickHouse(t, ClickHouseConfig{})
}

// StartClickHouse is ClickHouse with a configuration.
func StartClickHouse(t testing.TB, cfg ClickHouseConfig) *ClickHouseServer {
	t.Helper()
	parts := need(t, clickHousePart)
	launcher, err := chserver.path()
	if err != nil {
		t.Fatal(err)
	}
	s := &ClickHouseServer{again: again{Dir: t.TempDir()}}
	native, http := FreePort(t), FreePort(t)
	s.Addr, s.HTTPAddr = fmt.Sprintf("127.0.0.1:%d", native), fmt.Sprintf("127.0.0.1:%d", http)
	config := map[string]any{"Dir": s.Dir, "NativePort": native, "HTTPPort": http, "Users": cfg.Users, "Shards": portsOf(cfg.Shards)}
	writeClickHouseConfig(t, clickHouseTemplates, s.Dir, config)
	if cfg.UsersXML != "" {
		if err := os.WriteFile(filepath.Join(s.Dir, "users.xml"), []byte(cfg.UsersXML), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.command = Command{
		Name:  "clickhouse",
		Path:  launcher,
		Args:  []string{"--config-file=" + filepath.Join(s.Dir, "config.xml"), "--path=" + s.dataDir()},
		Env:   []string{"CHDB_LIB_PATH=" + filepath.Join(parts, clickHouseLibrary)},
		Dir:   s.Dir,
		Ready: s.ping,
	}
	if cfg.DiskBytes > 0 {
		SmallDisk(t, s.dataDir(), cfg.DiskBytes)
	}
	s.start(t)
	t.Cleanup(func() { s.Kill() })
	return s
}

func (s *ClickHouseServer) dataDir() string { return filepath.Join(s.Dir, "data") }

// FillDisk takes all the room that the server's disk has, until empty is called.
func (s *ClickHouseServer) FillDisk(t testing.TB) (empty func()) {
	t.Helper()
	return FillDisk(t, s.dataDir())
}

func writeClickHouseConfig(t testing.TB, templates *template.Template, dir string, config map[string]any) {
	t.Helper()
	for _, name := range []string{"config.xml", "users.xml"} {
		var b bytes.Buffer
		if err := templates.ExecuteTemplate(&b, name, config); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func portsOf(addrs []string) (ports []string) {
	for _, addr := range addrs {
		_, port, _ := strings.Cut(addr, ":")
		ports = append(ports, port)
	}
	return ports
}

// Query runs one statement as user default over HTTP and returns its rows as
// ClickHouse prints them (tab-separated unless it says FORMAT), without the
// last newline. An error of the server fails t. A server that has died by itself,
// as chdb's does now and then when a client is killed while it connects, is
// started again first: its data survives that, as it survives a kill.
func (s *ClickHouseServer) Query(t testing.TB, statement string) string {
	t.Helper()
	rows, err := s.query(t.Context(), ClickHouseUser{Name: "default"}, statement)
	if err != nil && s.hasDied() {
		t.Logf("clickhouse (pid %d) has died by itself and is started again", s.PID())
		s.start(t)
		rows, err = s.query(t.Context(), ClickHouseUser{Name: "default"}, statement)
	}
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return rows
}

// hasDied tells whether the process has ended, for which it waits a moment: its
// connections end before it does.
func (s *ClickHouseServer) hasDied() bool {
	select {
	case <-s.Done():
		return true
	case <-time.After(dyingMax):
		return false
	}
}

// dyingMax is how long a server may take to end once it does not answer.
const dyingMax = 2 * time.Second

func (s *ClickHouseServer) query(ctx context.Context, as ClickHouseUser, statement string) (string, error) {
	u := url.URL{Scheme: "http", Host: s.HTTPAddr, Path: "/"}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), strings.NewReader(statement))
	if err != nil {
		return "", err
	}
	req.SetBasicAuth(as.Name, as.Password)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("HTTP %d: %s", resp.StatusCode, strings.TrimSpace(string(body)))
	}
	return strings.TrimSuffix(string(body), "\n"), nil
}

// ping demands an answer to a query over HTTP and a listening native port.
func (s *ClickHouseServer) ping(ctx context.Context) error {
	if _, err := s.query(ctx, ClickHouseUser{Name: "default"}, "SELECT 1"); err != nil {
		return err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.Addr)
	if err != nil {
		return err
	}
	return conn.Close()
}
