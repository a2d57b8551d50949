package compat

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The table of docs/compatibility.md is written by a run with -update from what
// the run found out, the column of Sluice or with -against=kafka that of Kafka:
//
//	go test ./internal/compat -args -update
//
// Rows that the run left out keep their result.
var update = flag.Bool("update", false, "write the results of this run to docs/compatibility.md")

const (
	tableFile  = "../../docs/compatibility.md"
	tableStart = "<!-- The table is written by `go test ./internal/compat -args -update`. -->\n"
)

// Results of a row, from the best to the one that says most.
const (
	passes     = "passes"
	notOffered = "not offered"
	fails      = "fails"
	notRun     = ""
)

// exercise is a row: what is done through one client.
type exercise struct {
	id      string // what tests call it by
	client  string
	version string
	what    string
}

func exercises() []exercise {
	kafka := testenv.PartVersion("kafka")
	kcat := testenv.PartVersion("kcat") + " (librdkafka 2.0.2)"
	confluent := testenv.PartVersion("confluent-kafka")
	kafkaPython, aiokafka, kafkajs := testenv.PartVersion("kafka-python"), testenv.PartVersion("aiokafka"), testenv.PartVersion("kafkajs")
	sarama := moduleVersion("goclients/go.mod", "github.com/IBM/sarama")
	kafkaGo := moduleVersion("goclients/go.mod", "github.com/segmentio/kafka-go")
	kgo := moduleVersion("../../go.mod", "github.com/twmb/franz-go")
	return []exercise{
		{"topics", "kafka-topics", kafka, "create with settings, add partitions, describe, list, delete"},
		{"configs", "kafka-configs", kafka, "describe a topic's settings, defaults included"},
		{"configs-alter", "kafka-configs", kafka, "alter and reset settings of a topic, a broker and all brokers; in force at once"},
		{"console", "kafka-console-producer, -consumer", kafka, "write and read, in a group"},
		{"groups", "kafka-consumer-groups", kafka, "list, describe (offsets, members, state), delete offsets, delete"},
		{"reset", "kafka-consumer-groups", kafka, "reset: to-earliest, to-latest, to-offset, shift-by, to-datetime, by-duration, to-current, from-file; dry run, export"},
		{"consumer-protocol", "Java consumers, group.protocol=consumer", kafka, "two verifiable consumers share a topic and hand over; kafka-groups; kafka-consumer-groups describes and resets"},
		{"classic-protocol", "Java consumers, group.protocol=classic", kafka, "two verifiable consumers share a topic and hand over, eager and cooperative"},
		{"changing-protocol", "Java consumers, both protocols", kafka, "a classic group is taken over by a member of the consumer protocol, shared, and given back"},
		{"get-offsets", "kafka-get-offsets", kafka, "earliest, latest, max-timestamp, a timestamp"},
		{"delete-records", "kafka-delete-records", kafka, "delete up to an offset and up to the end"},
		{"log-dirs", "kafka-log-dirs", kafka, "describe"},
		{"perf", "kafka-producer-perf-test, kafka-consumer-perf-test", kafka, "write and read all, none and lz4"},
		{"verifiable", "kafka-verifiable-producer, -consumer", kafka, "every acknowledged record is read"},
		{"api-versions", "kafka-broker-api-versions", kafka, "reads the ranges; none is newer or older than the tool knows"},
		{"dump-log", "kafka-dump-log", kafka, "log files of every codec, offset and time indexes, producer snapshots"},
		{"dump-offsets", "kafka-dump-log", kafka, "committed offsets and groups, with --offsets-decoder"},
		{"cluster", "kafka-cluster, kafka-client-metrics", kafka, "cluster-id, list-endpoints, unregister of an unknown broker; list"},
		{"leader-election", "kafka-leader-election", kafka, "preferred and unclean elections with nothing to do"},
		{"reassign", "kafka-reassign-partitions", kafka, "list, execute and verify a plan that changes nothing"},
		{"describe-producers", "kafka-transactions", kafka, "describe-producers"},
		{"kcat", "kcat", kcat, "each codec, acks, keys, headers, timestamps, listings, queries, balanced groups"},
		{"confluent", "confluent-kafka for Python", confluent, "codecs, idempotence, administration, groups, rebalances (eager, cooperative), seek by time"},
		{"kafka-python", "kafka-python", kafkaPython, "codecs, idempotence, administration, groups, offsets by time"},
		{"kafka-python-delete", "kafka-python", kafkaPython, "delete records"},
		{"aiokafka", "aiokafka", aiokafka, "codecs, idempotence, administration, groups, offsets by time"},
		{"aiokafka-delete", "aiokafka", aiokafka, "delete records"},
		{"kafkajs", "kafkajs", kafkajs, "none and gzip, idempotence, administration, groups and their reset, offsets by time"},
		{"kafkajs-delete", "kafkajs", kafkajs, "delete records"},
		{"sarama", "sarama", sarama, "codecs, idempotence, administration, groups"},
		{"sarama-delete", "sarama", sarama, "delete records"},
		{"kafka-go", "segmentio/kafka-go", kafkaGo, "codecs, administration, groups"},
		{"kgo", "franz-go", kgo, "its own public test suite (`make test-kgo`), without transactions and share groups"},
	}
}

// moduleVersion reads a required version from a go.mod.
func moduleVersion(file, module string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	m := regexp.MustCompile(regexp.QuoteMeta(module) + ` v(\S+)`).FindSubmatch(b)
	if m == nil {
		panic(fmt.Sprintf("%s requires no %s", file, module))
	}
	return string(m[1])
}

// found collects the results of this run by the rows' ids.
var found = struct {
	sync.Mutex
	results map[string]string
	covered map[string]bool
}{results: map[string]string{}, covered: map[string]bool{}}

// covers notes t's outcome in the rows. A row that several tests cover gets the
// outcome that says most.
func covers(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if !slices.ContainsFunc(exercises(), func(e exercise) bool { return e.id == id }) {
			t.Fatalf("no row %q in the table of clients", id)
		}
		note(id, notRun)
		t.Cleanup(func() {
			switch {
			case t.Failed():
				note(id, fails)
			case !t.Skipped():
				note(id, passes)
			}
		})
	}
}

func note(id, result string) {
	rank := []string{notRun, passes, notOffered, fails}
	found.Lock()
	defer found.Unlock()
	found.covered[id] = true
	if slices.Index(rank, result) > slices.Index(rank, found.results[id]) {
		found.results[id] = result
	}
}

// coversIfOffered is covers for what takes requests that the broker may not
// offer: then t is skipped and the rows say so.
func coversIfOffered(t *testing.T, b *broker, keys []kmsg.Key, ids ...string) {
	t.Helper()
	covers(t, ids...)
	for _, key := range keys {
		if !offers(t, b, key) {
			for _, id := range ids {
				note(id, notOffered)
			}
			t.Skipf("the broker does not offer %s", key.Name())
		}
	}
}

func offers(t *testing.T, b *broker, key kmsg.Key) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	versions, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, newClient(t, b))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(versions.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == int16(key) })
}

// row is a line of the written table.
type row struct{ client, version, what, sluice, kafka string }

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if err := account(); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// account writes the table if asked to. A whole run must have covered each row.
func account() error {
	if *update {
		return writeTable()
	}
	if !wholeRun() {
		return nil
	}
	for _, e := range exercises() {
		if !found.covered[e.id] {
			return fmt.Errorf("no test covers the row %q of the table of clients", e.id)
		}
	}
	return nil
}

func wholeRun() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.bench", "test.fuzz"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return !testing.Short()
}

func writeTable() error {
	page, err := os.ReadFile(tableFile)
	if err != nil {
		return err
	}
	head, _, ok := strings.Cut(string(page), tableStart)
	if !ok {
		return fmt.Errorf("%s has no line %s", tableFile, tableStart)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n| Client | Version | What is exercised | Sluice | Apache Kafka %s |\n|---|---|---|---|---|\n", head, tableStart, testenv.PartVersion("kafka"))
	for _, r := range merged(parseTable(string(page))) {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.client, r.version, r.what, r.sluice, r.kafka)
	}
	return os.WriteFile(tableFile, []byte(b.String()), 0o644)
}

// merged puts this run's results over those of the committed table.
func merged(committed []row) []row {
	var rows []row
	for _, e := range exercises() {
		r := row{client: e.client, version: e.version, what: e.what}
		for _, c := range committed {
			if c.client == r.client && c.version == r.version && c.what == r.what {
				r = c
			}
		}
		if result := found.results[e.id]; result != notRun {
			if *against == "kafka" {
				r.kafka = result
			} else {
				r.sluice = result
			}
		}
		rows = append(rows, r)
	}
	return rows
}

func parseTable(page string) []row {
	_, table, _ := strings.Cut(page, tableStart)
	var rows []row
	for _, line := range linesOf(table) {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 5 || strings.HasPrefix(cells[0], "--") || cells[0] == " Client " {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, row{cells[0], cells[1], cells[2], cells[3], cells[4]})
	}
	return rows
}

// TestCompatibilityTable finds the committed table to be of the clients that
// the tests exercise, each with a result.
func TestCompatibilityTable(t *testing.T) {
	if *update {
		t.Skip("the table is being written")
	}
	page, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	committed, want := parseTable(string(page)), exercises()
	if len(committed) != len(want) {
		t.Fatalf("%s has %d rows of %d: run with -update", tableFile, len(committed), len(want))
	}
	for i, e := range want {
		c := committed[i]
		if c.client != e.client || c.version != e.version || c.what != e.what {
			t.Errorf("%s, row %d: %s %s (%s), the tests have %s %s (%s): run with -update",
				tableFile, i+1, c.client, c.version, c.what, e.client, e.version, e.what)
		}
		if c.sluice != passes && c.sluice != notOffered || c.kafka != passes {
			t.Errorf("%s, row %d: %s (%s): %q with Sluice, %q with Kafka", tableFile, i+1, c.client, c.what, c.sluice, c.kafka)
		}
	}
}
