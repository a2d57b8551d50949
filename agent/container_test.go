package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func containerPipeline(settings string) string {
	return "pipeline: test\ncollect:\n  file: {include: [\"DIR/pods/*/*/*.log*\"], identity: true, " + settings + "}\n  labels: {site: shop}\ntopic: {name: lines, partitions: 1}\n"
}

const podDir = "pods/shop_cart-7d4b_9f1c/app"

func (r *rig) pod() string {
	r.t.Helper()
	if err := os.MkdirAll(r.path(podDir), 0o700); err != nil {
		r.t.Fatal(err)
	}
	return podDir + "/0.log"
}

// cri is a line of the form of containerd; millisecond orders them.
func cri(ms int, stream, tag, text string) string {
	return fmt.Sprintf("2026-11-30T10:00:%02d.%03d000000Z %s %s %s\n", ms/1000, ms%1000, stream, tag, text)
}

func dockerLine(t testing.TB, ms int, stream, text string) string {
	t.Helper()
	line, err := json.Marshal(map[string]string{"log": text, "stream": stream, "time": fmt.Sprintf("2026-11-30T10:00:%02d.%03dZ", ms/1000, ms%1000)})
	if err != nil {
		t.Fatal(err)
	}
	return string(line) + "\n"
}

func TestPartsOfContainersLines(t *testing.T) {
	t.Parallel()
	r := newRig(t, containerPipeline("container: {}, partial_after: 1h"))
	f := r.pod()
	r.write(f, cri(1, "stdout", "P", "1")+cri(2, "stderr", "F", "2")+cri(3, "stdout", "P", "3"))
	r.start()
	r.eventually("the file is found", func() bool { return r.account().FilesFollowed == 1 })
	r.steady("a record that another lies across waits", 150*time.Millisecond, func() bool { return r.store.count() == 0 })
	r.write(f, cri(4, "stdout", "F", "4")+cri(5, "stdout", "F", "")+"what is this\n")
	r.wants("2", "134", "", "what is this")
	first := map[string]string{"2": "stderr 10:00:00.002", "134": "stdout 10:00:00.001", "": "stdout 10:00:00.005"}
	offsets := map[string]bool{}
	for _, x := range r.store.all() {
		if want := first[x.value]; want != "" && x.headers["stream"]+" "+x.headers["time"][11:23] != want {
			t.Errorf("%q: headers %v, want %s", x.value, x.headers, want)
		}
		offsets[x.headers["file_offset"]] = true
		for k, v := range map[string]string{"namespace": "shop", "pod": "cart-7d4b", "pod_uid": "9f1c", "container": "app", "site": "shop"} {
			if x.headers[k] != v {
				t.Errorf("header %s is %q, want %q", k, x.headers[k], v)
			}
		}
	}
	if len(offsets) != 4 || !offsets["0"] {
		t.Errorf("offsets %v", offsets)
	}
	if a := r.account(); a.MalformedLines != 1 || a.Acked.Lines != 4 {
		t.Errorf("account %+v", a)
	}
}

// Killed at any moment between the parts, the lines come once and whole.
func TestPartsOverKills(t *testing.T) {
	t.Parallel()
	for _, docker := range []bool{false, true} {
		r := newRig(t, containerPipeline("container: {}, partial_after: 1h"))
		line := func(ms int, stream, text string, partial bool) string {
			if docker {
				if !partial {
					text += "\n"
				}
				return dockerLine(t, ms, stream, text)
			}
			return cri(ms, stream, map[bool]string{true: "P", false: "F"}[partial], text)
		}
		f := r.pod()
		var want []string
		r.start()
		for i := range 8 {
			n := i * 10
			for _, piece := range []string{
				line(n, "stdout", fmt.Sprintf("<a%d", i), true), line(n+1, "stderr", fmt.Sprintf("e%d", i), false),
				line(n+2, "stdout", "middle", true), line(n+3, "stderr", fmt.Sprintf("f%d", i), false), line(n+4, "stdout", "end>", false),
			} {
				r.write(f, piece)
				if (i+len(piece))%3 == 0 {
					r.halt()
					r.start()
				}
			}
			want = append(want, fmt.Sprintf("<a%dmiddleend>", i), fmt.Sprintf("e%d", i), fmt.Sprintf("f%d", i))
		}
		r.wants(want...)
		r.halt()
	}
}

func TestPartsLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, containerPipeline("container: {format: cri}, line_bytes_max: 1KiB"))
	f := r.pod()
	var text strings.Builder
	for i := range 300 { // 1.2 MB without end
		text.WriteString(cri(i, "stdout", "P", strings.Repeat("ü", 2000)))
	}
	r.write(f, text.String()+cri(301, "stdout", "F", "x")+cri(302, "stdout", "F", "after"))
	r.start()
	r.eventually("the line after", func() bool { return slices.Contains(r.store.values(), "after") })
	for _, v := range r.store.values() {
		if len(v) > 1024 {
			t.Errorf("a line of %d bytes", len(v))
		}
	}
	if a := r.account(); a.CutLines == 0 {
		t.Error("no cut is counted")
	}
}

func TestStackTracesOfContainers(t *testing.T) {
	t.Parallel()
	r := newRig(t, containerPipeline(`container: {}, multiline: {preset: java, idle: 300ms}, partial_after: 1h`))
	f := r.pod()
	r.start()
	r.write(f, cri(1, "stdout", "F", "ERROR a")+cri(2, "stderr", "F", "warn 1")+cri(3, "stdout", "P", "\tat ")+cri(3, "stdout", "F", "x.y")+
		cri(4, "stderr", "F", "warn 2")+cri(5, "stdout", "F", "INFO b")+cri(6, "stdout", "F", "\tat q")+
		cri(2000, "stdout", "F", "INFO c")) // much later: what stderr wrote is whole
	r.wants("ERROR a\n\tat x.y", "warn 1", "warn 2", "INFO b\n\tat q", "INFO c")
}

func TestJSONInContainers(t *testing.T) {
	t.Parallel()
	r := newRig(t, containerPipeline("container: {json: true}")+"process:\n  - drop: level == \"debug\"\n  - set: {source: 'headers.stream + \"/\" + headers.pod'}\n")
	f := r.pod()
	r.write(f, cri(1, "stdout", "F", `{"level":"info","n":1.50}`)+cri(2, "stdout", "F", `{"level":"debug"}`)+cri(3, "stderr", "F", `plain {text}`))
	r.start()
	r.wants(`{"level":"info","n":1.50,"site":"shop","source":"stdout/cart-7d4b"}`, "plain {text}")
	for _, x := range r.store.all() {
		if raw := x.headers["sluice_raw"] == "1"; raw != (x.value == "plain {text}") {
			t.Errorf("%q is marked as raw: %v", x.value, raw)
		}
	}
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	r := newRig(t, containerPipeline(`container: {namespaces: {include: ["shop*"], exclude: [shop-test]}}`))
	for _, d := range []string{"shop_a_1/c", "shop-test_b_2/c", "kube-system_d_3/c", "shop-two_e_4/c", "other/c"} {
		if err := os.MkdirAll(r.path("pods/"+d), 0o700); err != nil {
			t.Fatal(err)
		}
		r.write("pods/"+d+"/0.log", cri(1, "stdout", "F", d))
	}
	r.start()
	r.wants("shop_a_1/c", "shop-two_e_4/c")
}

func TestPathsOfContainers(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for path, want := range map[string]container{
		"/var/log/containers/cart-7d4b_shop_my-app-" + id + ".log":  {"shop", "cart-7d4b", "", "my-app", id},
		"/var/log/pods/shop_cart_9f1c/app/0.log":                    {"shop", "cart", "9f1c", "app", ""},
		"/var/log/pods/shop_cart_9f1c/app/0.log.20261130-100000":    {"shop", "cart", "9f1c", "app", ""},
		"/var/lib/docker/containers/" + id + "/" + id + "-json.log": {id: id},
		"/var/log/containers/cart_shop_app.log":                     {},
		"/var/log/pods/static/app/0.log":                            {},
		"/var/log/nginx/access.log":                                 {},
		"":                                                          {},
	} {
		if got := containerOf(path); got != want {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
	}
	both := containerOf("/var/log/containers/cart_shop_app-"+id+".log", "/var/log/pods/shop_cart_9f1c/app/0.log")
	if want := (container{"shop", "cart", "9f1c", "app", id}); both != want {
		t.Errorf("%+v, want %+v", both, want)
	}
}

// The links that a kubelet makes lead to the files, which are each read once, whatever name they are found by.
func TestKubeletLinks(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/containers/*.log\"], container: {}}\ntopic: {name: lines}\n")
	f := r.pod()
	if err := os.Mkdir(r.path("containers"), 0o700); err != nil {
		t.Fatal(err)
	}
	id := strings.Repeat("ab", 32)
	r.write(f, cri(1, "stdout", "F", "one"))
	link(t, r.path(f), filepath.Join(r.path("containers"), "cart-7d4b_shop_app-"+id+".log"))
	r.start()
	r.wants("one")
	if h := r.store.all()[0].headers; h["container_id"] != id || h["pod_uid"] != "9f1c" || h["namespace"] != "shop" {
		t.Errorf("headers %v", h)
	}
	r.rename(f, podDir+"/0.log.20261130-100000")
	r.write(podDir+"/0.log.20261130-100000", cri(2, "stdout", "F", "late"))
	r.write(f, cri(3, "stdout", "F", "two"))
	r.wants("one", "late", "two")
}
