package testenv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Network is a set of hosts on one link, and the test beside them. With the
// right to make namespaces (root on Linux) each host has a network and a mount
// namespace of its own, so that what it sends to another can be dropped, one
// way too, and its disk can be small. Otherwise all hosts are 127.0.0.1 and
// CanCut is false. Nothing of it outlives the test binary: namespaces end with
// the processes that hold them, and links with their namespaces.
//
// Its methods are not safe for concurrent use.
type Network struct {
	Test  *Host // the test itself
	hosts []*Host
	// holder of the bridge's namespace; nil without namespaces
	bridge *Process
	number int // of the subnet and of the test's link
	logs   string
}

// Host is where processes of a Network run.
type Host struct {
	Name string
	IP   string

	net    *Network
	mac    string
	device string
	holder *Process // of its namespaces; nil: the test's own
	ahead  time.Duration
}

// loopback is the test's own host, for servers that nothing is cut from.
var loopback = &Host{Name: "loopback", IP: "127.0.0.1"}

const (
	// Addresses meant for benchmarks of networks (RFC 2544), of which no machine
	// has one: 198.18.NUMBER.0/24 is the link of one Network.
	networkPrefix  = "198.18"
	networkNumbers = 256
	networkTries   = 50
	// nobodysMAC is no host's: the bridge drops what is sent to it.
	nobodysMAC = "02:53:4c:ff:ff:ff"
	hostDevice = "eth0"
)

// NewNetwork makes a network that ends with t.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	notShort(t)
	n := &Network{logs: t.TempDir()}
	if err := n.makeBridge(t.Context()); err != nil {
		t.Logf("without network namespaces nothing can be cut: %v", err)
		n.Test = loopback
		return n
	}
	t.Cleanup(n.end)
	return n
}

// CanCut says whether the network can drop what hosts send, and mount disks.
func (n *Network) CanCut() bool { return n.bridge != nil }

func (n *Network) end() {
	for _, h := range n.hosts {
		if h.holder != nil {
			h.holder.Kill()
		}
	}
	n.bridge.Kill()
}

func (n *Network) makeBridge(ctx context.Context) error {
	if err := haveCommands([]string{"ip", "unshare", "nsenter"}); err != nil {
		return err
	}
	holder, err := holdNamespaces(ctx, "bridge", n.logs)
	if err != nil {
		return err
	}
	if err := n.connectTest(ctx, holder); err != nil {
		holder.Kill()
		return err
	}
	n.bridge = holder
	return nil
}

// connectTest makes the bridge in its namespace and the test's own link to it.
func (n *Network) connectTest(ctx context.Context, holder *Process) error {
	if err := ip(ctx, holder, "link add bridge type bridge", "link set bridge up"); err != nil {
		return err
	}
	var err error
	for range networkTries {
		n.number = rand.IntN(networkNumbers)
		h := &Host{Name: "test", net: n, device: fmt.Sprintf("sluice%d", n.number)}
		h.address(1)
		// Another test's device of that name makes this fail, and the next number is tried.
		if err = ip(ctx, nil, h.linkTo(holder, "test")); err != nil {
			continue
		}
		n.Test, n.hosts = h, []*Host{h}
		return errors.Join(ip(ctx, nil, h.addresses()...), ip(ctx, holder, "link set test master bridge up"))
	}
	return fmt.Errorf("no free network among %d tried: %w", networkTries, err)
}

func (h *Host) address(number int) {
	h.IP = fmt.Sprintf("%s.%d.%d", networkPrefix, h.net.number, number)
	h.mac = fmt.Sprintf("02:53:4c:%02x:00:%02x", h.net.number, number)
}

func (h *Host) linkTo(bridge *Process, port string) string {
	return fmt.Sprintf("link add name %s address %s type veth peer name %s netns %d", h.device, h.mac, port, bridge.PID())
}

func (h *Host) addresses() []string {
	return []string{
		fmt.Sprintf("addr add %s/24 dev %s", h.IP, h.device),
		fmt.Sprintf("link set %s up", h.device),
	}
}

// Host adds a host to the network.
func (n *Network) Host(t testing.TB, name string) *Host {
	t.Helper()
	if !n.CanCut() {
		return &Host{Name: name, IP: loopback.IP, net: n}
	}
	h := &Host{Name: name, net: n, device: hostDevice}
	h.address(len(n.hosts) + 1)
	if err := n.connect(t.Context(), h); err != nil {
		t.Fatalf("add host %s: %v", name, err)
	}
	return h
}

func (n *Network) connect(ctx context.Context, h *Host) (err error) {
	if h.holder, err = holdNamespaces(ctx, h.Name, n.logs); err != nil {
		return err
	}
	port := fmt.Sprintf("host%d", len(n.hosts)+1)
	err = errors.Join(
		ip(ctx, h.holder, h.linkTo(n.bridge, port)),
		ip(ctx, n.bridge, fmt.Sprintf("link set %s master bridge up", port)),
		ip(ctx, h.holder, append(h.addresses(), "link set lo up")...))
	for _, other := range n.hosts {
		err = errors.Join(err, other.sendTo(ctx, h, h.mac), h.sendTo(ctx, other, other.mac))
	}
	n.hosts = append(n.hosts, h)
	return err
}

// sendTo fixes the link address that h's packets to another host carry.
func (h *Host) sendTo(ctx context.Context, to *Host, mac string) error {
	return ip(ctx, h.holder, fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", to.IP, mac, h.device))
}

// Cut silently drops what from sends to another host from now on. What comes
// the other way still arrives.
func (n *Network) Cut(t testing.TB, from, to *Host) {
	t.Helper()
	if err := from.sendTo(context.Background(), to, nobodysMAC); err != nil {
		t.Fatalf("cut %s from %s: %v", from.Name, to.Name, err)
	}
}

// CutBoth drops what either host sends to the other.
func (n *Network) CutBoth(t testing.TB, a, b *Host) {
	t.Helper()
	n.Cut(t, a, b)
	n.Cut(t, b, a)
}

// Heal lets everything through again. It may run after t has ended.
func (n *Network) Heal(t testing.TB) {
	t.Helper()
	if !n.CanCut() {
		return
	}
	for _, from := range n.hosts {
		for _, to := range n.hosts {
			if from == to {
				continue
			}
			if err := from.sendTo(context.Background(), to, to.mac); err != nil {
				t.Fatalf("heal %s: %v", from.Name, err)
			}
		}
	}
}

// In returns the command that runs c on the host.
func (h *Host) In(c Command) Command {
	if h.holder == nil {
		return c
	}
	command := append([]string{c.Path}, c.Args...)
	if h.ahead > 0 {
		ahead := fmt.Sprint(int64(h.ahead.Seconds()))
		command = append([]string{"unshare", "--time", "--monotonic", ahead, "--boottime", ahead, "--"}, command...)
	}
	c.Args = append(h.enter("sh", "-c", `cd "$0" && exec "$@"`, orRoot(c.Dir)), command...)
	c.Path = "nsenter"
	return c
}

// AheadBy lets the monotonic clock of the host's later processes be so far ahead
// of the test's. (The wall clock is the whole machine's: nothing can move it for
// one host.)
func (h *Host) AheadBy(d time.Duration) { h.ahead = d }

func (h *Host) enter(args ...string) []string {
	return append([]string{"--target", fmt.Sprint(h.holder.PID()), "--net", "--mount", "--"}, args...)
}

func orRoot(dir string) string {
	if dir == "" {
		return "/"
	}
	return dir
}

// SmallDisk mounts a new file system of that many bytes at dir, for the host
// alone. Path says where the test finds its files.
func (h *Host) SmallDisk(t testing.TB, dir string, bytes int64) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mount := exec.Command("nsenter", h.enter("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", bytes), "sluice-test", dir)...)
	if out, err := mount.CombinedOutput(); err != nil {
		t.Fatalf("mount a disk of %s: %v: %s", h.Name, err, out)
	}
}

// NewBootID lets the host's later processes see another boot ID, as after a
// reboot of its machine.
func (h *Host) NewBootID(t testing.TB) {
	t.Helper()
	id := fmt.Sprintf("%08x-0000-4000-8000-%012x\n", rand.Uint32(), rand.Uint64N(1<<48))
	file := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(file, []byte(id), 0o444); err != nil {
		t.Fatal(err)
	}
	mount := exec.Command("nsenter", h.enter("mount", "--bind", file, "/proc/sys/kernel/random/boot_id")...)
	if out, err := mount.CombinedOutput(); err != nil {
		t.Fatalf("give %s another boot ID: %v: %s", h.Name, err, out)
	}
}

// Path is the test's own name for a file of the host.
func (h *Host) Path(file string) string {
	if h.holder == nil {
		return file
	}
	return filepath.Join(fmt.Sprintf("/proc/%d/root", h.holder.PID()), file)
}

// holdNamespaces starts a process that does nothing but keep a new network
// and mount namespace in being.
func holdNamespaces(ctx context.Context, name, logs string) (*Process, error) {
	var holder *Process
	c := Command{Name: name + "-namespaces", Path: "unshare", Args: []string{"--net", "--mount", "sleep", "1000000"}}
	holder, err := spawn(c, logs)
	if err != nil {
		return nil, err
	}
	c.Ready = func(context.Context) error {
		running, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", holder.PID()))
		if err == nil && strings.TrimSpace(string(running)) != "sleep" {
			err = errors.New("namespaces are not made yet")
		}
		return err
	}
	if err := holder.awaitReady(ctx, c); err != nil {
		holder.Kill()
		return nil, fmt.Errorf("make namespaces: %w: %s", err, lastLines(holder.tail(), 1))
	}
	return holder, nil
}

// ip runs commands of ip(8) in the network namespace that a process holds, nil
// being the test's own.
func ip(ctx context.Context, in *Process, commands ...string) error {
	for _, c := range commands {
		args := append([]string{"ip"}, strings.Fields(c)...)
		if in != nil {
			args = append([]string{"nsenter", "--target", fmt.Sprint(in.PID()), "--net", "--"}, args...)
		}
		if err := runIn(ctx, "", args[0], args[1:]...); err != nil {
			return fmt.Errorf("ip %s: %w", c, err)
		}
	}
	return nil
}
