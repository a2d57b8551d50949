package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
)

// The names of an HDFS with two NameNodes, which share their edits in a directory. Neither is active before it is told to be.
const (
	haService   = "pair"
	haAdmin     = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
	haTailEdits = "1" // seconds until the standby sees a change
)

// haNames are the NameNodes' own names.
var haNames = [2]string{"nn1", "nn2"}

// NameNodes are the addresses of the NameNodes as a pipeline lists them.
func (s *HDFSServer) NameNodes() string {
	if s.Second == nil {
		return `"` + s.Addr + `"`
	}
	return fmt.Sprintf("%q, %q", s.ha[0].rpc, s.ha[1].rpc)
}

// nameNodeAddrs are where a NameNode of a pair listens.
type nameNodeAddrs struct{ rpc, http string }

// configurePair changes the configuration from one NameNode to two.
func (s *HDFSServer) configurePair(core, site map[string]string) error {
	s.ha[0] = nameNodeAddrs{s.Addr, s.HTTPAddr}
	for _, addr := range []*string{&s.ha[1].rpc, &s.ha[1].http} {
		port, err := freePort()
		if err != nil {
			return err
		}
		*addr = fmt.Sprintf("127.0.0.1:%d", port)
	}
	delete(site, "dfs.namenode.rpc-address")
	delete(site, "dfs.namenode.http-address")
	core["fs.defaultFS"] = "hdfs://" + haService
	site["dfs.nameservices"] = haService
	site["dfs.ha.namenodes."+haService] = haNames[0] + "," + haNames[1]
	for i, name := range haNames {
		site["dfs.namenode.rpc-address."+haService+"."+name] = s.ha[i].rpc
		site["dfs.namenode.http-address."+haService+"."+name] = s.ha[i].http
	}
	site["dfs.client.failover.proxy.provider."+haService] = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
	site["dfs.namenode.shared.edits.dir"] = "file://" + filepath.Join(s.dir, "shared")
	site["dfs.ha.fencing.methods"] = "shell(/bin/true)"
	site["dfs.ha.tail-edits.period"] = haTailEdits
	site["dfs.ha.log-roll.period"] = haTailEdits
	return nil
}

// pairArgs are those of one NameNode of a pair.
func (s *HDFSServer) pairArgs(i int, more ...string) []string {
	return s.javaArgs(nameNode, append([]string{"-Ddfs.ha.namenode.id=" + haNames[i], "-Ddfs.namenode.name.dir=file://" + filepath.Join(s.dir, "name-"+haNames[i])}, more...)...)
}

// startPair formats and starts two NameNodes, of which the first is made active.
func (s *HDFSServer) startPair(ctx context.Context, dirRemoved string) error {
	if err := s.java(ctx, "format the HDFS", s.pairArgs(0, "-format", "-force", "-nonInteractive")); err != nil {
		return err
	}
	for i := range haNames {
		if i == 1 {
			if err := s.java(ctx, "copy the first NameNode's state", s.pairArgs(1, "-bootstrapStandby", "-force", "-nonInteractive")); err != nil {
				return err
			}
		}
		n := &HDFSNode{dir: s.dir, command: Command{Name: haNames[i], Path: "java", Args: s.pairArgs(i), Dir: s.dir, dirRemoved: dirRemoved,
			Ready: func(ctx context.Context) error {
				_, err := s.httpAt(ctx, s.ha[i].http, http.MethodGet, "/jmx", nil)
				return err
			}}}
		if err := n.start(ctx); err != nil {
			return err
		}
		if i == 0 {
			s.NameNode = n
		} else {
			s.Second = n
		}
	}
	return s.java(ctx, "make a NameNode active", s.javaArgs(haAdmin, "-transitionToActive", haNames[0]))
}

func (s *HDFSServer) java(ctx context.Context, what string, args []string) error {
	out, err := exec.CommandContext(ctx, "java", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", what, err, lastLines(string(out), 20))
	}
	return nil
}

// Active is the NameNode that is active of two.
func (s *HDFSServer) Active() *HDFSNode {
	if s.active == 1 {
		return s.Second
	}
	return s.NameNode
}

// awaitOutOfSafeMode waits until a NameNode has heard of enough blocks to become active.
func (s *HDFSServer) awaitOutOfSafeMode(t testing.TB, addr string) {
	t.Helper()
	await(t, func(ctx context.Context) error {
		var info struct{ Safemode string }
		if err := s.beanAt(ctx, addr, "NameNodeInfo", &info); err != nil || info.Safemode != "" {
			return fmt.Errorf("the NameNode at %s: %s (%v)", addr, info.Safemode, err)
		}
		return nil
	})
}

// Failover makes the other NameNode active, whether the active one lives or not.
func (s *HDFSServer) Failover(t testing.TB) {
	t.Helper()
	from, to := s.active, 1-s.active
	s.awaitOutOfSafeMode(t, s.ha[to].http)
	err := s.java(t.Context(), "fail over", s.javaArgs(haAdmin, "-failover", haNames[from], haNames[to]))
	if err != nil {
		select {
		case <-s.Active().Done(): // the tool is not satisfied with a fenced one on each version
			err = errors.Join(err, s.java(t.Context(), "make a NameNode active", s.javaArgs(haAdmin, "-transitionToActive", "--forceactive", haNames[to])))
		default:
		}
	}
	s.active, s.Addr, s.HTTPAddr = to, s.ha[to].rpc, s.ha[to].http
	if err != nil {
		t.Fatal(err)
	}
}
