package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks/directory"
)

// TestSinkReload has a worker process take changed files again and again under load, a broken one among them, and once kills it right after: each record is in each sink's
// directory once, a sink that did not change stays in its group, and one that was taken out stops.
func TestSinkReload(t *testing.T) {
	const partitions, records = 3, 30_000
	b := ownBroker(t)
	b.part.up()
	dir := t.TempDir()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), partitions, 1, nil, "reload"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "p.yaml")
	configure := func(age, more string) {
		t.Helper()
		text := fmt.Sprintf("pipeline: reload\nsinks:\n  same:\n    process: [{parse: json}]\n    directory: {path: %[1]s/same, format: json}\n    batch: {age: 100ms}\n"+
			"  changed:\n    process: [{parse: json}]\n    directory: {path: %[1]s/changed, format: json}\n    batch: {age: %[2]s}\n%[3]s", dir, age, more)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("50ms", "")
	metrics := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	start := func() *testenv.Process {
		return testenv.Start(t, testenv.Command{Name: "sink", Path: testenv.Sluice(t), Dir: dir,
			Args:  []string{"sink", file, "--brokers", b.addr, "--metrics", metrics, "--session-timeout", "6s", "--instance-id", "one"},
			Ready: func(ctx context.Context) error { return getOK(ctx, "http://"+metrics+"/readyz") }})
	}
	worker := start()
	reloads := func(result string) string {
		_, rest, _ := strings.Cut(getText(t, "http://"+metrics+"/metrics"), `sluice_config_reloads_total{result="`+result+`"} `)
		n, _, _ := strings.Cut(rest, "\n")
		return n
	}
	hangUp := func(result, want string) {
		t.Helper()
		if err := worker.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		await(t, "reload "+want+" of "+result, func() bool { return reloads(result) == want })
	}
	produced := 0
	produce := func() {
		t.Helper()
		var batch []*kgo.Record
		for range records / 10 {
			batch = append(batch, &kgo.Record{Topic: "reload", Partition: int32(produced % partitions), Value: fmt.Appendf(nil, `{"n":%d}`, produced)})
			produced++
		}
		if err := client.ProduceSync(t.Context(), batch...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		produce()
		configure(fmt.Sprintf("%dms", 60+i), "")
		hangUp("success", fmt.Sprint(i+1))
	}
	configure("50ms", "    nonsense: true\n")
	produce()
	hangUp("failure", "1")
	configure("20ms", "  third:\n    process: [{parse: json}]\n    directory: {path: "+dir+"/third, format: json}\n")
	produce()
	hangUp("success", "5")
	configure("30ms", "")
	produce()
	if err := worker.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	worker.Kill()
	worker = start()
	produce()
	configure("40ms", "")
	produce()
	hangUp("success", "1")
	produce()
	await(t, "everything to be committed", func() bool {
		for _, group := range []string{"reload.same", "reload.changed"} {
			offsets, err := admin.FetchOffsets(t.Context(), group)
			var sum int64
			offsets.Each(func(o kadm.OffsetResponse) { sum += o.At })
			if err != nil || sum != int64(produced) {
				return false
			}
		}
		return true
	})
	for _, name := range []string{"same", "changed"} {
		seen := map[int64]int{}
		err := directory.Read(filepath.Join(dir, name), func(row directory.Row) error {
			n, _ := row.Fields["n"].(int64)
			seen[n]++
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for n := range int64(produced) {
			if seen[n] != 1 {
				t.Fatalf("%s: record %d is stored %d times", name, n, seen[n])
			}
		}
	}
	if text := getText(t, "http://"+metrics+"/metrics"); strings.Contains(text, `sink="third"`) || !strings.Contains(text, `sink="changed"`) {
		t.Error("the metrics do not follow the sinks")
	}
	if err := worker.Stop(); err != nil {
		t.Error(err)
	}
}
