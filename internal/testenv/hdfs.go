package testenv

import (
	"context"
	"embed"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

//go:embed hdfs
var hdfsFiles embed.FS

var hdfsPart = Part{
	Name:    "hdfs",
	Version: "3.5.0",
	From:    "mvn",
	toFetch: []string{"mvn"},
	toRun:   []string{"java"},
	check:   checkJava,
	fetch:   fetchHDFS,
}

func fetchHDFS(ctx context.Context, dir, version string) error {
	if err := os.CopyFS(dir, hdfsFiles); err != nil {
		return err
	}
	return runIn(ctx, filepath.Join(dir, "hdfs"), "mvn", "--batch-mode", "--quiet", mavenCopyDependencies,
		"-Dhadoop.version="+version, "-DoutputDirectory="+filepath.Join(dir, "jars"))
}

const (
	hdfsHeap = "256m"
	nameNode = "org.apache.hadoop.hdfs.server.namenode.NameNode"
	dataNode = "org.apache.hadoop.hdfs.server.datanode.DataNode"
)

// HDFSConfig says what is particular about an HDFS; its zero value has one DataNode.
type HDFSConfig struct {
	DataNodes   int // 0: 1
	Replication int // default of new files; 0: 1
	// LateReports has DataNodes report what they have once a second: until then the NameNode does not take a file as complete.
	LateReports bool
	// Pair has two NameNodes, one active and one standing by.
	Pair bool
	// Security has it demand Kerberos of all, without a Pair; WebHDFS is of no use then. nil: it believes who its clients say they are.
	Security *Security
}

// HDFSServer is an HDFS: a NameNode and DataNodes, each a process. A DataNode that is silent for some 15 s counts as dead.
type HDFSServer struct {
	Addr      string // host:port of the NameNode
	HTTPAddr  string // host:port of its web interface
	User      string // who may do everything
	NameNode  *HDFSNode
	DataNodes []*HDFSNode
	Second    *HDFSNode // the other NameNode of a pair, else nil

	dir    string
	parts  string
	krb5   string // configuration of Kerberos; empty: none
	ha     [2]nameNodeAddrs
	active int // of a pair; Addr and HTTPAddr are its
}

// HDFSNode is a process of an HDFS that may be killed and started again.
type HDFSNode struct {
	*Process
	command Command
	dir     string
}

var sharedHDFS struct {
	sync.Once
	server *HDFSServer
	err    error
}

// HDFS returns a running HDFS of one DataNode that all tests of this test binary share: use directories of your own, and do not stop it.
func HDFS(t testing.TB) *HDFSServer {
	t.Helper()
	parts := need(t, hdfsPart)
	sharedHDFS.Do(func() {
		dir, err := os.MkdirTemp("", "sluice-test-hdfs-*")
		if err == nil {
			sharedHDFS.server, err = startHDFS(context.Background(), parts, dir, dir, HDFSConfig{})
		}
		sharedHDFS.err = err
	})
	if sharedHDFS.err != nil {
		t.Fatal(sharedHDFS.err)
	}
	printOnFailure(t, sharedHDFS.server.NameNode.Process)
	return sharedHDFS.server
}

// StartHDFS starts an HDFS for t alone, whose nodes may be stopped, killed and restarted.
func StartHDFS(t testing.TB, cfg HDFSConfig) *HDFSServer {
	t.Helper()
	parts := need(t, hdfsPart)
	s, err := startHDFS(t.Context(), parts, t.TempDir(), "", cfg)
	if s != nil {
		for _, n := range append(s.DataNodes, s.NameNode, s.Second) {
			if n != nil && n.Process != nil {
				t.Cleanup(func() { n.Kill() }) // the data goes too: no need to wait for a clean stop
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	printOnFailure(t, s.NameNode.Process)
	return s
}

// startHDFS formats and starts an HDFS in dir. The directory dirRemoved, if any, is removed when the test binary is gone.
func startHDFS(ctx context.Context, parts, dir, dirRemoved string, cfg HDFSConfig) (*HDFSServer, error) {
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	s := &HDFSServer{dir: dir, parts: parts, User: me.Username}
	if cfg.Security != nil {
		s.User, s.krb5 = hdfsSuperuser, cfg.Security.KDC.Config()
	}
	if err := s.configure(cfg); err != nil {
		return s, err
	}
	if cfg.Pair {
		if err := s.startPair(ctx, dirRemoved); err != nil {
			return s, err
		}
	} else if err := s.startNameNode(ctx, dirRemoved); err != nil {
		return s, err
	}
	for i := range max(cfg.DataNodes, 1) {
		if err := s.addDataNode(i); err != nil {
			return s, err
		}
	}
	errs := make([]error, len(s.DataNodes))
	var all sync.WaitGroup
	for i, n := range s.DataNodes {
		all.Go(func() { errs[i] = n.start(ctx) })
	}
	all.Wait()
	return s, errors.Join(errs...)
}

// startNameNode formats and starts the only NameNode.
func (s *HDFSServer) startNameNode(ctx context.Context, dirRemoved string) error {
	if err := s.java(ctx, "format the HDFS", s.javaArgs(nameNode, "-format", "-force", "-nonInteractive")); err != nil {
		return err
	}
	s.NameNode = &HDFSNode{dir: s.dir, command: Command{
		Name: "namenode", Path: "java", Args: s.javaArgs(nameNode), Dir: s.dir, Ready: s.pingNameNode, dirRemoved: dirRemoved,
	}}
	return s.NameNode.start(ctx)
}

func (s *HDFSServer) addDataNode(i int) error {
	var ports [3]int
	for j := range ports {
		var err error
		if ports[j], err = freePort(); err != nil {
			return err
		}
	}
	data := filepath.Join(s.dir, "data"+strconv.Itoa(i))
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	s.DataNodes = append(s.DataNodes, &HDFSNode{dir: s.dir, command: Command{
		Name: "datanode" + strconv.Itoa(i), Path: "java", Dir: s.dir,
		Args: s.javaArgs(dataNode, "-Ddfs.datanode.data.dir=file://"+data, "-Ddfs.datanode.address="+address,
			fmt.Sprintf("-Ddfs.datanode.http.address=127.0.0.1:%d", ports[1]), fmt.Sprintf("-Ddfs.datanode.ipc.address=127.0.0.1:%d", ports[2])),
		Ready: func(ctx context.Context) error { return s.pingDataNode(ctx, ports[0]) },
	}})
	return nil
}

func (n *HDFSNode) start(ctx context.Context) (err error) {
	n.Process, err = launch(ctx, n.command, n.dir)
	return err
}

// Restart starts a node that was killed again, on the same ports and data, and waits until it serves. A NameNode may be in safe mode then.
func (n *HDFSNode) Restart(t testing.TB) {
	t.Helper()
	<-n.Done()
	if err := n.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Kill() })
	printOnFailure(t, n.Process)
}

func (s *HDFSServer) javaArgs(class string, args ...string) []string {
	jvm := []string{"-Xmx" + hdfsHeap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true"}
	if s.krb5 != "" {
		jvm = append(jvm, "-Djava.security.krb5.conf="+s.krb5)
	}
	return append(append(jvm, "-Dhadoop.log.dir="+s.dir, "-Dhadoop.home.dir="+s.dir,
		"-cp", filepath.Join(s.dir, "conf")+":"+filepath.Join(s.parts, "jars", "*"), class), args...)
}

// configure writes the configuration. The jars come without the pages of the web interface, which does not start without their directories.
func (s *HDFSServer) configure(cfg HDFSConfig) error {
	conf := filepath.Join(s.dir, "conf")
	for _, app := range []string{"hdfs", "datanode", "secondary", "static"} {
		dir := filepath.Join(conf, "webapps", app, "WEB-INF")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		page := `<web-app metadata-complete="true" version="3.1" xmlns="http://xmlns.jcp.org/xml/ns/javaee"/>`
		if err := os.WriteFile(filepath.Join(dir, "web.xml"), []byte(page), 0o644); err != nil {
			return err
		}
	}
	log4j, err := os.ReadFile(filepath.Join(s.parts, "hdfs", "log4j.properties"))
	if err == nil {
		err = os.WriteFile(filepath.Join(conf, "log4j.properties"), log4j, 0o644)
	}
	if err != nil {
		return err
	}
	for _, addr := range []*string{&s.Addr, &s.HTTPAddr} {
		port, err := freePort()
		if err != nil {
			return err
		}
		*addr = fmt.Sprintf("127.0.0.1:%d", port)
	}
	core := map[string]string{
		"fs.defaultFS":                "hdfs://" + s.Addr,
		"hadoop.tmp.dir":              filepath.Join(s.dir, "tmp"),
		"hadoop.http.staticuser.user": s.User,
	}
	site := map[string]string{
		"dfs.replication":                                                strconv.Itoa(max(cfg.Replication, 1)),
		"dfs.namenode.name.dir":                                          "file://" + filepath.Join(s.dir, "name"),
		"dfs.namenode.rpc-address":                                       s.Addr,
		"dfs.namenode.http-address":                                      s.HTTPAddr,
		"dfs.namenode.rpc-bind-host":                                     "127.0.0.1",
		"dfs.namenode.handler.count":                                     "4",
		"dfs.datanode.hostname":                                          "127.0.0.1",
		"dfs.client.use.datanode.hostname":                               "false",
		"dfs.namenode.datanode.registration.ip-hostname-check":           "false",
		"dfs.namenode.safemode.extension":                                "0",
		"dfs.namenode.safemode.min.datanodes":                            "1",
		"dfs.namenode.fs-limits.min-block-size":                          "65536",
		"dfs.namenode.redundancy.interval.seconds":                       "1s",
		"dfs.heartbeat.interval":                                         "1",
		"dfs.namenode.heartbeat.recheck-interval":                        "2000",
		"dfs.permissions.enabled":                                        "true",
		"dfs.block.access.token.enable":                                  "false",
		"dfs.namenode.replication.considerLoad":                          "false",
		"dfs.client.block.write.replace-datanode-on-failure.best-effort": "true",
	}
	if cfg.Pair {
		if err := s.configurePair(core, site); err != nil {
			return err
		}
	}
	if cfg.LateReports {
		site["dfs.blockreport.incremental.intervalMsec"] = "1000"
	}
	if cfg.Security != nil {
		cfg.Security.configure(core, site)
	}
	if err := writeHadoopXML(filepath.Join(conf, "core-site.xml"), core); err != nil {
		return err
	}
	return writeHadoopXML(filepath.Join(conf, "hdfs-site.xml"), site)
}

func writeHadoopXML(file string, properties map[string]string) error {
	type property struct {
		Name  string `xml:"name"`
		Value string `xml:"value"`
	}
	var all struct {
		XMLName    xml.Name   `xml:"configuration"`
		Properties []property `xml:"property"`
	}
	for name, value := range properties {
		all.Properties = append(all.Properties, property{name, value})
	}
	text, err := xml.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func (s *HDFSServer) pingNameNode(ctx context.Context) error {
	_, err := s.state(ctx)
	return err
}

// pingDataNode demands that the NameNode has heard of a DataNode by its port.
func (s *HDFSServer) pingDataNode(ctx context.Context, port int) error {
	var bean struct{ LiveNodes string }
	if err := s.bean(ctx, "NameNodeInfo", &bean); err != nil {
		return err
	}
	var nodes map[string]struct{ XferAddr string }
	if err := json.Unmarshal([]byte(bean.LiveNodes), &nodes); err != nil {
		return fmt.Errorf("read the live DataNodes: %w", err)
	}
	for _, n := range nodes {
		if n.XferAddr == fmt.Sprintf("127.0.0.1:%d", port) {
			return nil
		}
	}
	return fmt.Errorf("the NameNode has not heard of the DataNode at port %d", port)
}

// AwaitLive waits until the NameNode counts so many DataNodes as live.
func (s *HDFSServer) AwaitLive(t testing.TB, n int) {
	t.Helper()
	await(t, func(ctx context.Context) error {
		if state, err := s.state(ctx); err != nil || state.NumLiveDataNodes != n {
			return fmt.Errorf("the NameNode counts %d DataNodes, want %d (%v)", state.NumLiveDataNodes, n, err)
		}
		return nil
	})
}

// awaitPoll is the time between two looks at a NameNode.
const awaitPoll = 100 * time.Millisecond

// await looks until there is no error, and fails t with the last one.
func await(t testing.TB, look func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	tick := time.NewTicker(awaitPoll)
	defer tick.Stop()
	for {
		err := look(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

type hdfsState struct {
	FSState          string
	NumLiveDataNodes int
}

func (s *HDFSServer) state(ctx context.Context) (state hdfsState, err error) {
	err = s.bean(ctx, "FSNamesystemState", &state)
	return state, err
}

// bean reads one of the NameNode's beans.
func (s *HDFSServer) bean(ctx context.Context, name string, into any) error {
	return s.beanAt(ctx, s.HTTPAddr, name, into)
}

func (s *HDFSServer) beanAt(ctx context.Context, addr, name string, into any) error {
	body, err := s.httpAt(ctx, addr, http.MethodGet, "/jmx", url.Values{"qry": {"Hadoop:service=NameNode,name=" + name}})
	if err != nil {
		return err
	}
	var answer struct{ Beans []json.RawMessage }
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("read the NameNode's state: %w", err)
	}
	if len(answer.Beans) == 0 {
		return fmt.Errorf("the NameNode has no %s yet", name)
	}
	return json.Unmarshal(answer.Beans[0], into)
}

func (s *HDFSServer) http(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	return s.httpAt(ctx, s.HTTPAddr, method, path, query)
}

func (s *HDFSServer) httpAt(ctx context.Context, addr, method, path string, query url.Values) ([]byte, error) {
	u := url.URL{Scheme: "http", Host: addr, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("HTTP %d: %s", resp.StatusCode, oneLine(errors.New(string(body))))
	}
	return body, err
}

// WebHDFS does an operation of the REST interface that needs no DataNode, such as SETQUOTA, as the user who may do everything, and returns its answer.
func (s *HDFSServer) WebHDFS(t testing.TB, method, path string, query url.Values) []byte {
	t.Helper()
	query.Set("user.name", s.User)
	body, err := s.http(t.Context(), method, "/webhdfs/v1"+path, query)
	if err != nil {
		t.Fatalf("%s %s %s: %v", method, path, query.Get("op"), err)
	}
	return body
}
