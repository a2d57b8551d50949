package bench

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

var (
	sinkBench    = flag.Bool("sinks", false, "measure the ClickHouse sink beside ClickHouse's own Kafka engine")
	sinkRows     = flag.Int("sinks.rows", 3_000_000, "records of a load on a sink")
	sinkProfiles = flag.String("sinks.profiles", "", "directory for CPU and heap profiles of the workers; profiling costs a few percent")
	sinkBinaries = flag.String("sinks.binaries", "", "sluice programs to measure in turn, with commas between them, in place of this tree's")
	sinkLoads    = flag.String("sinks.loads", "", "regular expression: measure the loads whose names it matches")
)

// sinkDDL is the table of ten columns that both sides fill.
const sinkDDL = `ts DateTime64(3, 'UTC'), host LowCardinality(String), remote_addr IPv4, method LowCardinality(String), path String, status UInt16,
	bytes UInt64, referer String, user_agent String, seconds Float64`

const ownSinkColumns = ", _topic LowCardinality(String), _topic_id LowCardinality(String), _partition UInt32, _offset UInt64"

// sinkRig is a Kafka with backlogs, and a ClickHouse.
type sinkRig struct {
	*testing.T
	broker string
	server *testenv.ClickHouseServer
	client *kgo.Client
	dir    string
	binary string // the program to measure; "": this tree's
}

// worker is the program to measure.
func (r *sinkRig) worker() string {
	if r.binary != "" {
		return r.binary
	}
	return testenv.Sluice(r.T)
}

// TestSinkSpeed prints what moving a backlog from Apache Kafka into a table costs: through this sink, and through ClickHouse's own Kafka engine, in one run.
func TestSinkSpeed(t *testing.T) {
	if !*sinkBench {
		t.Skip("a measurement of minutes: make bench-sinks")
	}
	wanted, err := regexp.Compile(*sinkLoads)
	if err != nil {
		t.Fatal(err)
	}
	broker := testenv.StartKafka(t, testenv.KafkaConfig{Measured: true}).Addr
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.Lz4Compression()), kgo.ProducerBatchMaxBytes(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r := &sinkRig{T: t, broker: broker, server: testenv.ClickHouse(t), client: client, dir: t.TempDir()}
	fmt.Printf("\n| load | rows/s | worker CPU s per million | server CPU s per million | worker's most memory MB |\n|---|---|---|---|---|\n")
	for _, l := range []struct {
		name string
		run  func(string)
	}{
		{"Kafka engine, 1 consumer", func(name string) { r.engine(name, 1) }},
		{"Kafka engine, 2 consumers", func(name string) { r.engine(name, 2) }},
		{"sink, JSON values", func(name string) { r.sink(name, "json", "", benchPartitions) }},
		{"sink, JSON values, LZ4", func(name string) { r.sink(name, "json", ", compression: lz4", benchPartitions) }},
		{"sink, JSON values, HTTP", func(name string) { r.sink(name, "json", ", protocol: http", benchPartitions) }},
		{"sink, raw nginx lines", func(name string) { r.sink(name, "nginx", "", benchPartitions) }},
		{"sink, JSON values, 64 partitions", func(name string) { r.sink(name, "json", "", 64) }},
		{"from a write to the file to the row, 1,000 lines/s", r.fromFileToRow},
		{"after kill -9", r.afterCrash},
	} {
		if !wanted.MatchString(l.name) {
			continue
		}
		for _, r.binary = range strings.Split(*sinkBinaries, ",") {
			l.run(strings.TrimSpace(l.name + " " + r.binary))
		}
	}
}

// jsonValue is about 220 bytes, as an agent writes a parsed line.
func jsonValue(i int) []byte {
	return fmt.Appendf(nil, `{"ts":"2026-11-30T10:%02d:%02d.%03dZ","host":"web-%d","remote_addr":"10.%d.%d.%d","method":"GET","path":"/products/%d","status":%d,"bytes":%d,`+
		`"referer":"https://example.com/","user_agent":"Mozilla/5.0 (X11; Linux)","seconds":0.0%02d}`,
		i/60%60, i%60, i%1000, i%8, i>>16&255, i>>8&255, i&255, i%5000, 200+i%5, i*37%100000, i%97)
}

func nginxLine(i int) []byte {
	return fmt.Appendf(nil, `10.%d.%d.%d - - [30/Nov/2026:10:%02d:%02d +0000] "GET /products/%d?page=%d HTTP/1.1" %d %d "https://example.com/" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"`,
		i>>16&255, i>>8&255, i&255, i/60%60, i%60, i%5000, i%7, 200+i%5, i*37%100000)
}

// backlog fills a topic.
func (r *sinkRig) backlog(value func(int) []byte, partitions int32) string {
	r.Helper()
	topic := topicName("sink")
	if _, err := kadm.NewClient(r.client).CreateTopic(r.Context(), partitions, 1, nil, topic); err != nil {
		r.Fatal(err)
	}
	for i := range *sinkRows {
		r.client.Produce(r.Context(), &kgo.Record{Topic: topic, Partition: int32(i/1000) % partitions, Value: value(i)}, func(_ *kgo.Record, err error) {
			if err != nil {
				r.Error(err)
			}
		})
	}
	if err := r.client.Flush(r.Context()); err != nil {
		r.Fatal(err)
	}
	return topic
}

// await polls until the table has all rows, and returns how long that took.
func (r *sinkRig) await(table string, since time.Time) time.Duration {
	r.Helper()
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) {
		if n, _ := strconv.Atoi(r.server.Query(r, "SELECT count() FROM "+table)); n >= *sinkRows {
			return time.Since(since)
		}
	}
	r.Fatalf("table %s has not all rows after three minutes", table)
	return 0
}

func (r *sinkRig) print(name string, took, worker, server time.Duration, memory string) {
	million := float64(*sinkRows) / 1e6
	fmt.Printf("| %s | %.0f k | %.2f | %.2f | %s |\n", name, float64(*sinkRows)/took.Seconds()/1e3, worker.Seconds()/million, server.Seconds()/million, memory)
}

// engine measures ClickHouse's own consumer.
func (r *sinkRig) engine(name string, consumers int) {
	topic := r.backlog(jsonValue, benchPartitions)
	table := strings.ReplaceAll(topic, "-", "_")
	r.server.Query(r, "CREATE TABLE "+table+" ("+sinkDDL+") ENGINE = MergeTree ORDER BY ts")
	r.server.Query(r, fmt.Sprintf("CREATE TABLE %s_q (%s) ENGINE = Kafka SETTINGS kafka_broker_list = '%s', kafka_topic_list = '%s', kafka_group_name = '%s', kafka_format = 'JSONEachRow', "+
		"kafka_num_consumers = %d, kafka_thread_per_consumer = %d, date_time_input_format = 'best_effort'", table, sinkDDL, r.broker, topic, topic, consumers, consumers/2))
	before, began := cpuOf(r.T, r.server.PID()), time.Now()
	r.server.Query(r, "CREATE MATERIALIZED VIEW "+table+"_v TO "+table+" AS SELECT * FROM "+table+"_q")
	took := r.await(table, began)
	r.print(name, took, 0, cpuOf(r.T, r.server.PID())-before, "-")
	r.server.Query(r, "DROP TABLE "+table+"_v SYNC")
	r.server.Query(r, "DROP TABLE "+table+"_q SYNC")
}

// sink measures a worker of ours.
func (r *sinkRig) sink(name, kind, settings string, partitions int32) {
	value, process := jsonValue, "[{parse: json}]"
	columns := ""
	if kind == "nginx" {
		value, process = nginxLine, "[{parse: nginx}]"
		columns = ", columns: {ts: time, host: '\"web-1\"', remote_addr: remote_addr, method: method, path: path, status: status, bytes: bytes, referer: referer, user_agent: user_agent, seconds: 0.5}"
	}
	topic := r.backlog(value, partitions)
	table, file := r.sinkTable(topic, process, "", settings+columns)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	metrics := ""
	if *sinkProfiles != "" {
		metrics = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(r.T))
	}
	cmd := exec.CommandContext(ctx, r.worker(), "sink", file, "--brokers", r.broker, "--metrics", metrics)
	if metrics != "" {
		cmd.Args = append(cmd.Args, "--profiling")
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	before, began := cpuOf(r.T, r.server.PID()), time.Now()
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	profiles := r.profile(metrics, name)
	took := r.await(table, began)
	server, worker := cpuOf(r.T, r.server.PID())-before, cpuOf(r.T, cmd.Process.Pid)
	r.print(name, took, worker, server, mostMemory(cmd.Process.Pid))
	profiles()
	cancel()
	_ = cmd.Wait()
	if r.Failed() {
		r.Log(log.String())
	}
}

// sinkTable makes a table for a topic, and the pipeline file of a worker between them.
func (r *sinkRig) sinkTable(topic, process, sinkSettings, settings string) (table, file string) {
	table = strings.ReplaceAll(topic, "-", "_")
	r.server.Query(r, "CREATE TABLE "+table+" ("+sinkDDL+ownSinkColumns+") ENGINE = MergeTree ORDER BY ts SETTINGS non_replicated_deduplication_window = 1000")
	addr := r.server.Addr
	if strings.Contains(settings, "http") {
		addr = r.server.HTTPAddr
	}
	file = filepath.Join(r.dir, table+".yaml")
	text := fmt.Sprintf("pipeline: %s\ntopic: {name: %s}\nsink: {process: %s, clickhouse: {addr: [%q], table: %s%s}%s}\n", topic, topic, process, addr, table, settings, sinkSettings)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		r.Fatal(err)
	}
	return table, file
}

// profileFor is how long a worker's CPU is profiled from its start: about as long as a load takes.
const profileFor = 3 * time.Second

// profile writes profiles of the worker whose metrics are at addr; the function it returns waits for them.
func (r *sinkRig) profile(addr, name string) (done func()) {
	if addr == "" {
		return func() {}
	}
	var all sync.WaitGroup
	base := filepath.Join(*sinkProfiles, regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(name, "-"))
	get := func(path, file string) error {
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		content, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		return os.WriteFile(file, content, 0o644)
	}
	all.Go(func() {
		for deadline := time.Now().Add(profileFor); get("/healthz", os.DevNull) != nil && time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
		}
		if err := get(fmt.Sprintf("/debug/pprof/profile?seconds=%d", profileFor/time.Second), base+".cpu"); err != nil {
			r.Error(err)
		}
		if err := get("/debug/pprof/heap", base+".heap"); err != nil {
			r.Error(err)
		}
	})
	return all.Wait
}

// mostMemory is the most a process was resident, in MB.
func mostMemory(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "-"
	}
	for line := range strings.Lines(string(text)) {
		if kb, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.Atoi(strings.Fields(kb)[0])
			return strconv.Itoa(n / 1024)
		}
	}
	return "-"
}
