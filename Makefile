# Sluice's tasks. `make` or `make help` lists them.
#
# Everything needs only Go and make. The real servers and clients of the tests
# (Kafka, HDFS, ClickHouse, Prometheus and a dozen clients) are fetched by `make parts`
# into a cache outside the tree; tests whose part cannot be had are skipped and
# named in one closing line.

SHELL      := /bin/bash
GO         ?= go
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS    := -s -w -X main.version=$(VERSION)

# No cgo anywhere, as in the binary that is shipped: one set of compiled packages
# serves build, tests and the binary that the tests start, and gcc is not needed.
export CGO_ENABLED := 0

# Limits of a run; each may be overridden: make test TEST_TIMEOUT=20m
TEST_TIMEOUT ?= 9m
UNIT_TIMEOUT ?= 60s
FUZZ_TIME    ?= 5s
BENCH        ?= .
BENCH_TIME   ?= 1s
PKG          ?= ./...
CROSS        := linux/amd64 linux/arm64 darwin/arm64

# Brokers of `make test-kgo`: 1, or a cluster of 3 and a ZooKeeper.
BROKERS := 1

# Kills in a row of `make test-kill`, which takes some 2 s for each.
KILLS := 50

# What `make bench-broker` measures, empty for everything, and how often.
LOADS ?=
RUNS  ?= 3

# What `make bench-agent` measures and with what, empty for everything.
SHIPPERS ?=
MEASURES ?=

# Seeds of `make test-agent-chaos` in this process, some 30 ms each, and kills of
# real agents and brokers, some 0.5 s each.
CHAOS_SEEDS  ?= 10000
CHAOS_ROUNDS ?= 300

# Faults of `make test-faults`, some 10 s each, what draws them (0: any), and the
# brokers, 3 to 5: with more than 3 partitions are moved too. WITHIN is when each
# partition takes records again: the session timeout of 3 s and 5 s.
ROUNDS         ?= 200
SEED           ?= 0
NODES          ?= 3
WITHIN         ?= 8s
FAULTS_TIMEOUT ?= 3h

# Faults between topic and table of `make test-sink-chaos`, some 7 s each, on each
# kind of brokers and of table (nowindow remembers no inserts).
SINK_ROUNDS ?= 75
SINK_BROKERS ?= kafka,sluice
SINK_TABLES ?= window,nowindow
SINK_LOADS   ?=

# Faults between topic and HDFS of `make test-files`, some 8 s each, on each kind of
# brokers, and on a pair of NameNodes and on one. FILE_TESTS, a regular expression,
# picks: FILE_TESTS=TestPairOfNameNodes takes a minute, FILE_TESTS='TestTicketsEnd|TestProtections'
# is what Kerberos takes beyond `make test`.
FILE_ROUNDS  ?= 20
FILE_BROKERS ?= kafka
FILE_TESTS   ?= .

# A module of its own: what the tests' Go clients need is not the product's.
GO_CLIENTS := internal/compat/goclients

# Where tests note the parts they did without; read back by the closing line.
SKIPPED_PARTS := $(CURDIR)/build/skipped-parts

.DEFAULT_GOAL := help
.PHONY: help build demo cluster test test-unit test-kgo test-kill test-agent-chaos test-faults test-files test-sink-chaos compatibility race lint cross parts fuzz-short bench bench-broker bench-agent bench-cluster bench-sinks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

build: ## build bin/sluice
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/sluice ./cmd/sluice

demo: build ## run the quick start: generated logs from a file to Parquet, with an account at the end
	$(GO) build -o bin/demo ./examples/quickstart/demo
	./bin/demo -sluice bin/sluice

cluster: build ## run a ZooKeeper and three brokers on this machine until Ctrl-C, to try what a cluster does (needs Java)
	@test -d "$${ZOOKEEPER_HOME:-/usr/share/zookeeper}" || $(GO) run ./internal/testenv/fetch -only zookeeper
	$(GO) build -o bin/cluster ./examples/cluster
	./bin/cluster -sluice bin/sluice

# The build comes first so that the tests, which build the binary too, find its
# packages compiled. `make lint` vets.
test: build ## all tests, with real servers and clients where they can be had (under 10 minutes)
	@mkdir -p build && : > $(SKIPPED_PARTS)
	@$(GO) run ./internal/testenv/fetch || true
	@status=0; \
	SLUICE_SKIPPED_PARTS=$(SKIPPED_PARTS) $(GO) test -vet=off -timeout $(TEST_TIMEOUT) $(PKG) || status=$$?; \
	$(GO) run ./internal/testenv/fetch -skipped $(SKIPPED_PARTS); \
	exit $$status

test-unit: ## the fast inner loop: no processes, no network, under 30 s
	$(GO) test -vet=off -short -timeout $(UNIT_TIMEOUT) $(PKG)

test-kgo: ## franz-go's own public test suite in full, against BROKERS (1) brokers
	$(GO) test -count=1 -vet=off -timeout $(TEST_TIMEOUT) -run TestFranzGoSuite -v ./internal/compat -args -kgo.full -kgo.brokers $(BROKERS)

test-kill: ## KILLS (50) SIGKILLs in a row under load: nothing acknowledged may be lost
	$(GO) test -count=1 -vet=off -timeout $(TEST_TIMEOUT) -run TestKilledUnderLoad -v ./internal/compat -args -kills $(KILLS)

test-agent-chaos: ## the agent under CHAOS_SEEDS (10000) random schedules of files, kills, power cuts and brokers' faults, and CHAOS_ROUNDS (300) real SIGKILLs
	$(GO) test -count=1 -vet=off -timeout $(FAULTS_TIMEOUT) -run 'TestChaos$$' ./agent -args -chaos $(CHAOS_SEEDS)
	$(GO) test -count=1 -vet=off -timeout $(FAULTS_TIMEOUT) -v -run TestChaosOfProcesses ./agent -args -chaos-rounds $(CHAOS_ROUNDS)

test-faults: ## ROUNDS (200) faults drawn by SEED on NODES (3) brokers and three ZooKeepers under load (root, for network namespaces)
	$(GO) test -count=1 -vet=off -timeout $(FAULTS_TIMEOUT) -run 'TestFaults$$' -v ./internal/faults -args -rounds $(ROUNDS) -seed $(SEED) -nodes $(NODES) -within $(WITHIN) -ensemble 3 -clock -keep $(CURDIR)/build/faults

test-files: ## workers of the file sinks killed and frozen at every step, on local directories and a real HDFS, a pair of NameNodes, Kerberos, and FILE_ROUNDS (20) faults drawn by SEED on a pair and on one (some 15 minutes; FILE_TESTS picks)
	$(GO) test -count=1 -vet=off -p 1 -timeout $(TEST_TIMEOUT) -run '$(FILE_TESTS)' ./sinks/directory -args -every-step
	$(GO) test -count=1 -vet=off -p 1 -timeout $(FAULTS_TIMEOUT) -run '$(FILE_TESTS)' ./sinks/hdfs -args -every-step -storm.rounds $(FILE_ROUNDS) -storm.seed $(SEED) -storm.on $(FILE_BROKERS)

test-sink-chaos: ## SINK_ROUNDS (75) faults drawn by SEED between brokers (Kafka, and three of these) and a ClickHouse table (with a dedup window, and without), compared record by record
	$(GO) test -count=1 -vet=off -timeout $(FAULTS_TIMEOUT) -run 'TestSinkChaos$$' -v ./sinks/clickhouse -args -storm.rounds $(SINK_ROUNDS) -storm.seed $(SEED) -storm.on $(SINK_BROKERS) -storm.tables $(SINK_TABLES)

.PHONY: bench-files
bench-files: ## what the sinks of files take a row, and JSON lines on a real HDFS against its client alone (2 minutes)
	$(GO) test ./bench -v -count=1 -run '^TestFiles$$' -timeout 20m -args -files

compatibility: ## write docs/compatibility.md from a run against the broker and one against Kafka
	$(GO) test -count=1 -vet=off -timeout $(TEST_TIMEOUT) ./internal/compat -args -update
	$(GO) test -count=1 -vet=off -timeout $(TEST_TIMEOUT) ./internal/compat -args -update -against=kafka

race: ## the inner loop's tests under the race detector (needs gcc)
	CGO_ENABLED=1 $(GO) test -race -short -timeout $(TEST_TIMEOUT) $(PKG)

lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not gofmt-ed (run gofmt -w):"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	cd $(GO_CLIENTS) && $(GO) vet ./...
	$(GO) tool staticcheck ./...

cross: ## compile without cgo for every supported platform
	@for p in $(CROSS); do \
	  echo "building $$p"; \
	  GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) build -ldflags '$(LDFLAGS)' -o build/cross/sluice-$${p%/*}-$${p#*/} ./cmd/sluice || exit 1; \
	done

parts: ## fetch the real servers and clients that the tests use
	$(GO) run ./internal/testenv/fetch

fuzz-short: ## each fuzz target for FUZZ_TIME (5s)
	@grep -rE '^func Fuzz' --include='*_test.go' . | sed -E 's/^(.*)\/[^/]*:func (Fuzz[A-Za-z0-9_]*).*/\1 \2/' | sort | \
	while read -r dir target; do \
	  echo "$$target in $$dir"; \
	  $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ_TIME) "$$dir" < /dev/null || exit 1; \
	done

bench: ## the benchmarks beside the code: make bench PKG=./agent/... BENCH=Tail
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCH_TIME) -benchmem $(PKG)

bench-broker: ## this broker against Apache Kafka in one run (some 15 minutes; LOADS, a regular expression, picks, RUNS (3) repeats)
	$(GO) test ./bench -v -count=1 -run '^TestAgainstKafka$$' -timeout 60m -args -against-kafka -loads '$(LOADS)' -runs $(RUNS)

bench-agent: ## the agent against rsyslog and the OpenTelemetry Collector in one run (some 10 minutes; SHIPPERS and MEASURES, regular expressions, pick)
	$(GO) test ./bench -v -count=1 -run '^TestAgainstShippers$$' -timeout 60m -args -against-shippers -shippers '$(SHIPPERS)' -measures '$(MEASURES)'

bench-cluster: ## three of these brokers against three nodes of Apache Kafka in one run (some 15 minutes)
	$(GO) test ./bench -v -count=1 -run ClusterAgainstKafka -timeout 60m -args -cluster-against-kafka

bench-sinks: ## the ClickHouse sink beside ClickHouse's own Kafka engine in one run (some 3 minutes; SINK_LOADS picks)
	$(GO) test ./bench -v -count=1 -run '^TestSinkSpeed$$' -timeout 20m -args -sinks -sinks.loads '$(SINK_LOADS)'

clean: ## remove what the build made (not the cache of parts)
	rm -rf bin build
