package cluster

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ConfigType is the type of a setting's value, with the protocol's own numbers.
type ConfigType int8

// The types of settings (DescribeConfigs, KIP-569).
const (
	ConfigBoolean ConfigType = 1
	ConfigString  ConfigType = 2
	ConfigInt     ConfigType = 3
	ConfigShort   ConfigType = 4
	ConfigLong    ConfigType = 5
	ConfigDouble  ConfigType = 6
	ConfigList    ConfigType = 7
	// ConfigPassword is a text that nobody is told.
	ConfigPassword ConfigType = 9
)

func (t ConfigType) String() string {
	switch t {
	case ConfigBoolean:
		return "boolean"
	case ConfigString:
		return "string"
	case ConfigInt:
		return "int"
	case ConfigShort:
		return "short"
	case ConfigLong:
		return "long"
	case ConfigDouble:
		return "double"
	case ConfigList:
		return "list"
	case ConfigPassword:
		return "password"
	}
	return fmt.Sprintf("type %d", int8(t))
}

// Synonym is a broker's property that gives a topic setting its default.
type Synonym struct {
	// Name of the broker's property.
	Name string
	// Unit is what one of the property's value is worth in the topic setting's
	// unit: 3,600,000 for log.retention.hours.
	Unit int64
	// Default is the property's own default in Kafka where several properties
	// set the same; empty for none.
	Default string
}

// ConfigDef defines one topic setting.
type ConfigDef struct {
	Name    string
	Type    ConfigType
	Default string
	Doc     string
	// Synonyms are the broker's properties that set the default for all topics,
	// the one that counts most first.
	Synonyms []Synonym
	// Min and Max bound numbers, both included.
	Min, Max float64
	// Values are the allowed words of a string or a list; empty allows any.
	Values []string
	// Effective says that the broker acts upon it. What is not effective is
	// accepted, kept and described, so that tools and scripts made for Apache
	// Kafka work; see [WithoutEffect].
	Effective bool
}

const (
	maxInt32 = math.MaxInt32
	maxInt64 = math.MaxInt64
	longMax  = "9223372036854775807"

	secondMs = 1000
	minuteMs = 60 * secondMs
	hourMs   = 60 * minuteMs
	dayMs    = 24 * hourMs
)

// same is the synonym of a setting whose broker property counts in the same unit.
func same(name string) Synonym { return Synonym{Name: name, Unit: 1} }

// hours is the synonym that counts in hours.
func hours(name, def string) Synonym { return Synonym{name, hourMs, def} }

func number(t ConfigType, name, def string, minValue, maxValue float64, doc string, synonyms ...Synonym) ConfigDef {
	return ConfigDef{Name: name, Type: t, Default: def, Min: minValue, Max: maxValue, Doc: doc, Synonyms: synonyms}
}

func words(t ConfigType, name, def string, values []string, doc string, synonyms ...Synonym) ConfigDef {
	return ConfigDef{Name: name, Type: t, Default: def, Values: values, Doc: doc, Synonyms: synonyms}
}

func (d ConfigDef) effective() ConfigDef {
	d.Effective = true
	return d
}

// TopicConfigs returns the definitions of all topic settings of Apache Kafka
// 4.x, sorted by name (https://kafka.apache.org/documentation/#topicconfigs).
func TopicConfigs() []ConfigDef {
	return []ConfigDef{
		words(ConfigList, "cleanup.policy", "delete", []string{"compact", "delete"},
			"What happens to old segments: delete removes those past retention, compact keeps the newest record of each key; both may be given, and with none everything is kept.",
			same("log.cleanup.policy")).effective(),
		number(ConfigInt, "compression.gzip.level", "-1", -1, 9,
			"The gzip level when compression.type is gzip; -1 is the codec's own default.", same("compression.gzip.level")).effective(),
		number(ConfigInt, "compression.lz4.level", "9", 1, 17,
			"The lz4 level when compression.type is lz4.", same("compression.lz4.level")).effective(),
		words(ConfigString, "compression.type", "producer", []string{"uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"},
			"How the topic's records are stored; producer keeps what the producer sent.", same("compression.type")).effective(),
		number(ConfigInt, "compression.zstd.level", "3", -131072, 22,
			"The zstd level when compression.type is zstd.", same("compression.zstd.level")).effective(),
		number(ConfigLong, "delete.retention.ms", "86400000", 0, maxInt64,
			"How long a tombstone stays in a compacted topic, in milliseconds.", same("log.cleaner.delete.retention.ms")).effective(),
		words(ConfigBoolean, "errors.deadletterqueue.group.enable", "false", nil,
			"Whether share groups may use the topic for records that they could not process."),
		number(ConfigLong, "file.delete.delay.ms", "60000", 0, maxInt64,
			"How long a removed segment's file stays before it is deleted, in milliseconds.", same("log.segment.delete.delay.ms")).effective(),
		number(ConfigLong, "flush.messages", longMax, 1, maxInt64,
			"After how many records the log is forced to disk, before the last of them is acknowledged.",
			same("log.flush.interval.messages")).effective(),
		number(ConfigLong, "flush.ms", longMax, 0, maxInt64,
			"After how many milliseconds a record is forced to disk; looked for every second, or more often by log.flush.scheduler.interval.ms.",
			same("log.flush.interval.ms"), Synonym{"log.flush.scheduler.interval.ms", 1, longMax}).effective(),
		words(ConfigList, "follower.replication.throttled.replicas", "", nil,
			"The replicas whose fetching is throttled: PARTITION:BROKER,... or *.").effective(),
		number(ConfigInt, "index.interval.bytes", "4096", 0, maxInt32,
			"How many bytes of the log lie between two entries of its index.", same("log.index.interval.bytes")).effective(),
		words(ConfigList, "leader.replication.throttled.replicas", "", nil,
			"The replicas whose serving of followers is throttled: PARTITION:BROKER,... or *.").effective(),
		number(ConfigLong, "local.retention.bytes", "-2", -2, maxInt64,
			"How many bytes of a tiered partition stay local; -2 means retention.bytes.", same("log.local.retention.bytes")),
		number(ConfigLong, "local.retention.ms", "-2", -2, maxInt64,
			"How many milliseconds of a tiered partition stay local; -2 means retention.ms.", same("log.local.retention.ms")),
		number(ConfigLong, "max.compaction.lag.ms", longMax, 1, maxInt64,
			"The longest a record may stay uncompacted, in milliseconds.", same("log.cleaner.max.compaction.lag.ms")).effective(),
		number(ConfigInt, "max.decompressed.message.bytes", "2147483639", 1, 2147483639,
			"The largest compressed record batch that is accepted, in bytes after decompression; at most 128 MiB in any case.", same("max.decompressed.message.bytes")).effective(),
		number(ConfigInt, "max.message.bytes", "1048588", 0, maxInt32,
			"The largest record batch that is accepted, in bytes after compression.", same("message.max.bytes")).effective(),
		number(ConfigLong, "message.timestamp.after.max.ms", "3600000", 0, maxInt64,
			"How far a record's timestamp may lie after the broker's clock, in milliseconds; only for CreateTime.",
			same("log.message.timestamp.after.max.ms")).effective(),
		number(ConfigLong, "message.timestamp.before.max.ms", longMax, 0, maxInt64,
			"How far a record's timestamp may lie before the broker's clock, in milliseconds; only for CreateTime.",
			same("log.message.timestamp.before.max.ms")).effective(),
		words(ConfigString, "message.timestamp.type", "CreateTime", []string{"CreateTime", "LogAppendTime"},
			"Whether a record carries the time it was made or the time it was appended.", same("log.message.timestamp.type")).effective(),
		number(ConfigDouble, "min.cleanable.dirty.ratio", "0.5", 0, 1,
			"The share of a log that must be uncompacted before it is compacted.", same("log.cleaner.min.cleanable.ratio")).effective(),
		number(ConfigLong, "min.compaction.lag.ms", "0", 0, maxInt64,
			"The shortest time a record stays uncompacted, in milliseconds.", same("log.cleaner.min.compaction.lag.ms")).effective(),
		number(ConfigInt, "min.insync.replicas", "1", 1, maxInt32,
			"How many replicas must be in sync for acks=all to be accepted.", same("min.insync.replicas")).effective(),
		words(ConfigBoolean, "preallocate", "false", nil,
			"Whether a segment's file is allocated in full when it is made.", same("log.preallocate")),
		number(ConfigLong, "remote.copy.lag.bytes", "-1", -1, maxInt64,
			"How many bytes of a tiered partition are not yet copied to the remote tier.", same("log.remote.copy.lag.bytes")),
		number(ConfigLong, "remote.copy.lag.ms", "0", -1, maxInt64,
			"How long a segment of a tiered partition is not yet copied to the remote tier, in milliseconds.", same("log.remote.copy.lag.ms")),
		words(ConfigBoolean, "remote.log.copy.disable", "false", nil,
			"Whether a tiered topic stops copying to the remote tier."),
		words(ConfigBoolean, "remote.log.delete.on.disable", "false", nil,
			"Whether turning tiering off deletes the remote data."),
		words(ConfigBoolean, "remote.storage.enable", "false", nil,
			"Whether the topic is tiered."),
		number(ConfigLong, "retention.bytes", "-1", math.MinInt64, maxInt64,
			"How many bytes a partition keeps before its oldest segments go; below zero means no limit.", same("log.retention.bytes")).effective(),
		number(ConfigLong, "retention.ms", "604800000", -1, maxInt64,
			"How long a segment is kept after its newest record, in milliseconds; -1 means for ever.",
			same("log.retention.ms"), Synonym{"log.retention.minutes", minuteMs, ""}, hours("log.retention.hours", "168")).effective(),
		number(ConfigInt, "segment.bytes", "1073741824", 1<<20, maxInt32,
			"The size at which a new segment is begun, in bytes.", same("log.segment.bytes")).effective(),
		number(ConfigInt, "segment.index.bytes", "10485760", 4, maxInt32,
			"The largest index of a segment, in bytes; a full index begins a new segment.", same("log.index.size.max.bytes")).effective(),
		number(ConfigLong, "segment.jitter.ms", "0", 0, maxInt64,
			"The most by which a segment is begun before segment.ms, each by a time of its own, in milliseconds.",
			same("log.roll.jitter.ms"), hours("log.roll.jitter.hours", "0")).effective(),
		number(ConfigLong, "segment.ms", "604800000", 1, maxInt64,
			"The age at which a new segment is begun, in milliseconds.",
			same("log.roll.ms"), hours("log.roll.hours", "168")).effective(),
		words(ConfigBoolean, "unclean.leader.election.enable", "false", nil,
			"Whether a replica that is not in sync may lead when no other is left, losing records.", same("unclean.leader.election.enable")).effective(),
	}
}

// WithoutEffect names the settings that are accepted, kept and described but
// change nothing yet, sorted.
func WithoutEffect() []string {
	var out []string
	for _, d := range TopicConfigs() {
		if !d.Effective {
			out = append(out, d.Name)
		}
	}
	return out
}

// LookupTopicConfig returns the definition of a topic setting.
func LookupTopicConfig(name string) (ConfigDef, bool) {
	defs := TopicConfigs()
	i, found := slices.BinarySearchFunc(defs, name, func(d ConfigDef, name string) int { return compareNames(d.Name, name) })
	if !found {
		return ConfigDef{}, false
	}
	return defs[i], true
}

// CheckTopicConfig refuses an unknown setting or a bad value with an [*InvalidConfigError].
func CheckTopicConfig(name, value string) error {
	d, ok := LookupTopicConfig(name)
	if !ok {
		return &InvalidConfigError{name, value, "unknown topic configuration" + didYouMean(name)}
	}
	return d.Check(value)
}

func didYouMean(name string) string {
	var known []string
	for _, d := range TopicConfigs() {
		known = append(known, d.Name)
	}
	if closest := ClosestName(name, known); closest != "" {
		return fmt.Sprintf("; did you mean %s?", closest)
	}
	return ""
}

// closestEditsMax is how many letters a suggested name may differ in.
const closestEditsMax = 4

// ClosestName returns the known name that a mistyped one most likely meant,
// empty if none is near.
func ClosestName(name string, known []string) string {
	best, edits := "", closestEditsMax+1
	for _, k := range known {
		if n := editDistance(name, k); n < edits {
			best, edits = k, n
		}
	}
	return best
}

// editDistance is the number of single-byte edits that turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// Check refuses a value that is not of the setting's type or out of its bounds.
func (d ConfigDef) Check(value string) error {
	var reason string
	switch d.Type {
	case ConfigBoolean:
		if v := strings.ToLower(strings.TrimSpace(value)); v != "true" && v != "false" {
			reason = "it must be true or false"
		} else if d.Name == "remote.storage.enable" && v == "true" {
			reason = "tiered storage is not available"
		}
	case ConfigShort:
		reason = d.checkInteger(value, 16)
	case ConfigInt:
		reason = d.checkInteger(value, 32)
	case ConfigLong:
		reason = d.checkInteger(value, 64)
	case ConfigDouble:
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil || !(v >= d.Min && v <= d.Max) {
			reason = fmt.Sprintf("it must be a number from %g to %g", d.Min, d.Max)
		}
	case ConfigString:
		reason = d.checkWord(value)
	case ConfigList:
		reason = d.checkList(value)
	}
	if reason != "" {
		return &InvalidConfigError{d.Name, value, reason}
	}
	return nil
}

func (d ConfigDef) checkInteger(value string, bits int) string {
	v, err := strconv.ParseInt(strings.TrimSpace(value), 10, bits)
	switch {
	case err != nil:
		return fmt.Sprintf("it must be a whole number (%s)", d.Type)
	case float64(v) < d.Min:
		return fmt.Sprintf("it must be at least %.0f", d.Min)
	case float64(v) > d.Max:
		return fmt.Sprintf("it must be at most %.0f", d.Max)
	}
	return ""
}

func (d ConfigDef) checkWord(value string) string {
	if len(d.Values) == 0 || slices.Contains(d.Values, value) {
		return ""
	}
	return "it must be one of " + strings.Join(d.Values, ", ")
}

func (d ConfigDef) checkList(value string) string {
	if len(d.Values) == 0 { // the lists of throttled replicas
		return checkThrottled(value)
	}
	for _, word := range SplitList(value) {
		if reason := d.checkWord(word); reason != "" {
			return reason
		}
	}
	return ""
}

// checkThrottled checks a list of PARTITION:BROKER, or * for all.
func checkThrottled(value string) string {
	if value == "*" {
		return ""
	}
	for _, pair := range SplitList(value) {
		partition, broker, _ := strings.Cut(pair, ":")
		_, badPartition := strconv.ParseUint(partition, 10, 31)
		_, badBroker := strconv.ParseUint(broker, 10, 31)
		if badPartition != nil || badBroker != nil {
			return "it must be PARTITION:BROKER,PARTITION:BROKER,... or *"
		}
	}
	return ""
}

// SplitList splits the value of a list: words between commas, blanks trimmed.
func SplitList(value string) []string {
	var out []string
	for _, w := range strings.Split(value, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}
