package broker

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-io/sluice/broker/api"
	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator/group"
)

// property ties the name of a setting to its field.
type property struct {
	name string
	typ  cluster.ConfigType
	doc  string
	set  func(*Config, string) error
	get  func(*Config) string
	// dynamic says that it may be set while the broker runs, to a number from
	// min to max.
	dynamic  bool
	min, max float64
	secret   bool // nobody is told its value
}

// asInt makes a long an int, where Kafka has one.
func (p property) asInt() property {
	set := p.set
	p.typ, p.max = cluster.ConfigInt, math.MaxInt32
	p.set = func(c *Config, value string) error {
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && n > math.MaxInt32 {
			return fmt.Errorf("%d is out of bounds; it must be at most %d", n, math.MaxInt32)
		}
		return set(c, value)
	}
	return p
}

// as gives the type that Kafka has, where the value is written the same.
func (p property) as(typ cluster.ConfigType) property {
	p.typ = typ
	return p
}

func (p property) whileRunning() property {
	p.dynamic = true
	return p
}

// properties are all settings that a configuration file may have, beside the
// defaults of topic settings.
func properties() []property {
	return append(clusterProperties(), []property{
		{
			name: "node.id", typ: cluster.ConfigInt, doc: "The broker's number in the cluster.",
			set: setInt(0, math.MaxInt32, func(c *Config, n int64) { c.NodeID = int32(n) }),
			get: func(c *Config) string { return strconv.Itoa(int(c.NodeID)) },
		},
		list("listeners", "The addresses to listen on: host:port or NAME://host:port, where the name is PLAINTEXT or one of listener.security.protocol.map. Port 0 takes a free one.",
			func(c *Config) *[]string { return &c.Listen }),
		list("advertised.listeners", "The addresses that clients are told, host:port or NAME://host:port, each for the clients of the listener of its name; a listener that is left out is told itself.",
			func(c *Config) *[]string { return &c.Advertise }),
		list("listener.security.protocol.map", "The protocol of each name of a listener, NAME:PROTOCOL; PLAINTEXT is the only protocol.",
			func(c *Config) *[]string { return &c.ListenerProtocols }).as(cluster.ConfigString),
		text("broker.rack", "Where the broker stands.", func(c *Config) *string { return &c.Rack }),
		{
			name: "log.dirs", typ: cluster.ConfigList,
			doc: "The directories that hold what the broker stores. The first one holds the cluster's state too; partitions are spread over all by number.",
			set: setDataDirs,
			get: func(c *Config) string { return strings.Join(c.dataDirs(), ",") },
		},
		{
			name: "num.partitions", typ: cluster.ConfigInt, doc: "Partitions of a topic that is made without saying.",
			set: setInt(1, math.MaxInt32, func(c *Config, n int64) { c.NumPartitions = int32(n) }),
			get: func(c *Config) string { return strconv.Itoa(int(c.NumPartitions)) },
		},
		{
			name: "default.replication.factor", typ: cluster.ConfigInt, doc: "Replicas of a topic that is made without saying.",
			set: setInt(1, math.MaxInt16, func(c *Config, n int64) { c.DefaultReplicationFactor = int16(n) }),
			get: func(c *Config) string { return strconv.Itoa(int(c.DefaultReplicationFactor)) },
		},
		negated("auto.create.topics.enable", "Whether a topic is made when a client asks for it and allows it.",
			func(c *Config) *bool { return &c.NoAutoCreateTopics }),
		negated("delete.topic.enable", "Whether topics may be deleted.", func(c *Config) *bool { return &c.NoDeleteTopics }),
		negated("log.group.fsync.enable", "Whether records of a partition that has one in-sync replica are acknowledged only when they are on disk.",
			func(c *Config) *bool { return &c.NoGroupFsync }),
		{
			name: "offsets.topic.num.partitions", typ: cluster.ConfigInt, doc: "Partitions of __consumer_offsets when it is made.",
			set: setInt(1, math.MaxInt32, func(c *Config, n int64) { c.OffsetsPartitions = int32(n) }),
			get: func(c *Config) string { return strconv.Itoa(int(c.OffsetsPartitions)) },
		},
		{
			name: "offsets.topic.replication.factor", typ: cluster.ConfigShort, doc: "Replicas of __consumer_offsets when it is made, at most one for each broker.",
			set: setInt(1, math.MaxInt16, func(c *Config, n int64) { c.OffsetsReplicationFactor = int16(n) }),
			get: func(c *Config) string { return strconv.Itoa(int(c.OffsetsReplicationFactor)) },
		},
		duration("offsets.retention.minutes", time.Minute, "How long the offsets of a group without members stay, in minutes.",
			func(c *Config) *time.Duration { return &c.OffsetsRetention }).asInt(),
		duration("offsets.retention.check.interval.ms", time.Millisecond, "How often expired offsets are looked for, in milliseconds.",
			func(c *Config) *time.Duration { return &c.OffsetsRetentionCheck }),
		number("offset.metadata.max.bytes", 0, math.MaxInt32, "The longest metadata of a commit, in bytes.",
			func(c *Config) *int { return &c.OffsetMetadataBytesMax }),
		intervalOrNone("group.initial.rebalance.delay.ms", "How long the first rebalance of an empty group waits for more members, in milliseconds.",
			func(c *Config) *time.Duration { return &c.GroupInitialRebalanceDelay }),
		duration("group.min.session.timeout.ms", time.Millisecond, "The shortest session timeout a member may ask for, in milliseconds.",
			func(c *Config) *time.Duration { return &c.GroupSessionTimeoutMin }).asInt(),
		duration("group.max.session.timeout.ms", time.Millisecond, "The longest session timeout a member may ask for, in milliseconds.",
			func(c *Config) *time.Duration { return &c.GroupSessionTimeoutMax }).asInt(),
		number("group.max.size", 1, math.MaxInt32, "The most members of a group.", func(c *Config) *int { return &c.GroupMembersMax }),
		duration("group.consumer.session.timeout.ms", time.Millisecond, "How long a member of the consumer protocol may be silent, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ConsumerGroupSessionTimeout }).asInt(),
		duration("group.consumer.heartbeat.interval.ms", time.Millisecond, "How often a member of the consumer protocol is told to send a heartbeat, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ConsumerGroupHeartbeatInterval }).asInt(),
		number("group.consumer.max.size", 1, math.MaxInt32, "The most members of a group of the consumer protocol.",
			func(c *Config) *int { return &c.ConsumerGroupMembersMax }),
		assignorList("group.consumer.assignors", "The server-side assignors that members may ask for: uniform, range. The first one is for members that do not ask.",
			func(c *Config) *[]string { return &c.ConsumerGroupAssignors }),
		intervalOrNone("group.consumer.assignment.interval.ms", "How long an assignment of a group of the consumer protocol stays at least, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ConsumerGroupAssignmentInterval }).whileRunning(),
		migrationPolicy("group.consumer.migration.policy", "Which groups with members change their protocol: upgrade lets the first member of the consumer protocol take a group of consumers over, downgrade lets the last one that leaves give it back, bidirectional both, disabled none, which also keeps members of the classic protocol out of groups of the other. Groups without members always can."),
		number("socket.request.max.bytes", 1024, math.MaxInt32, "The largest request, in bytes.", func(c *Config) *int { return &c.RequestBytesMax }),
		number("socket.send.buffer.bytes", -1, math.MaxInt32, "What the kernel keeps of the answers that a client has not taken, in bytes; -1 leaves it to the kernel, which suits clients far away.",
			func(c *Config) *int { return &c.SendBufferBytes }),
		number("max.connections", 1, math.MaxInt32, "The most open connections.", func(c *Config) *int { return &c.ConnectionsMax }).whileRunning(),
		number("max.connections.per.ip", 0, math.MaxInt32, "The most open connections of one address; 0 sets no limit.",
			func(c *Config) *int { return &c.ConnectionsPerIPMax }).whileRunning(),
		number("connection.max.in.flight.requests", 1, math.MaxInt32, "The most unanswered requests of a connection.",
			func(c *Config) *int { return &c.InFlightMax }),
		{
			name: "queued.max.request.bytes", typ: cluster.ConfigLong, doc: "The most memory that all requests take, in bytes.",
			set: setInt(1<<20, math.MaxInt64, func(c *Config, n int64) { c.RequestMemoryBytesMax = n }),
			get: func(c *Config) string { return strconv.FormatInt(c.RequestMemoryBytesMax, 10) },
		},
		duration("connections.max.idle.ms", time.Millisecond, "How long a connection may be without requests, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ConnectionIdleMax }),
		number("fetch.max.bytes", 1024, math.MaxInt32, "The most records in one Fetch response, in bytes.", func(c *Config) *int { return &c.FetchBytesMax }),
		duration("log.retention.check.interval.ms", time.Millisecond, "How often old segments are looked for, in milliseconds.",
			func(c *Config) *time.Duration { return &c.RetentionCheck }),
		duration("log.flush.offset.checkpoint.interval.ms", time.Millisecond, "How often recovery points and log starts are stored, in milliseconds.",
			func(c *Config) *time.Duration { return &c.CheckpointInterval }).asInt(),
		duration("replica.high.watermark.checkpoint.interval.ms", time.Millisecond, "How often high watermarks are stored, in milliseconds.",
			func(c *Config) *time.Duration { return &c.HighWatermarkCheckpoint }),
		duration("producer.id.expiration.ms", time.Millisecond, "How long an idle producer is remembered, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ProducerExpiry }).asInt().whileRunning(),
		duration("producer.id.expiration.check.interval.ms", time.Millisecond, "How often idle producers are looked for, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ProducerExpiryCheck }),
		number("num.recovery.threads.per.data.dir", 1, 1024, "How many logs are opened at a time.", func(c *Config) *int { return &c.RecoveryThreads }).whileRunning(),
		number("log.flush.threads", 1, 1024, "How many logs are synced at a time.", func(c *Config) *int { return &c.FlushThreads }),
		only("log.cleaner.enable", "true", "Whether compacted topics are compacted.").as(cluster.ConfigBoolean),
		number("log.cleaner.threads", 1, 1024, "How many logs are compacted at a time.", func(c *Config) *int { return &c.CleanerThreads }).whileRunning(),
		duration("log.cleaner.backoff.ms", time.Millisecond, "How long a thread that finds nothing to compact waits before it looks again, in milliseconds.",
			func(c *Config) *time.Duration { return &c.CleanerBackoff }).whileRunning(),
		{
			name: "log.cleaner.dedupe.buffer.size", typ: cluster.ConfigLong, dynamic: true, min: 1 << 20, max: math.MaxInt64,
			doc: "The most memory for the maps of keys of all cleaner threads, in bytes; a log with more keys is compacted in several rounds.",
			set: setInt(1<<20, math.MaxInt64, func(c *Config, n int64) { c.CleanerDedupeBytes = n }),
			get: func(c *Config) string { return strconv.FormatInt(c.CleanerDedupeBytes, 10) },
		},
		{
			name: "log.cleaner.io.max.bytes.per.second", typ: cluster.ConfigDouble, dynamic: true, min: cleanerBytesPerSecondMin, max: math.MaxFloat64,
			doc: "The most bytes a second that all cleaner threads read and write together.",
			set: func(c *Config, value string) error {
				n, err := strconv.ParseFloat(value, 64)
				if err != nil || !(n >= cleanerBytesPerSecondMin) {
					return fmt.Errorf("%q is not a number of at least %d", value, cleanerBytesPerSecondMin)
				}
				c.CleanerBytesPerSecond = n
				return nil
			},
			get: func(c *Config) string { return javaDouble(c.CleanerBytesPerSecond) },
		},
		{
			name: "log.stray.retention.hours", typ: cluster.ConfigInt,
			doc: "How long the directory of a partition that the cluster does not have here is kept under another name, in hours; -1 for ever.",
			set: setInt(-1, math.MaxInt32/3600, func(c *Config, n int64) {
				if c.StrayRetention = time.Duration(n) * time.Hour; n == 0 {
					c.StrayRetention = 1 // a nanosecond: zero means the default
				}
			}),
			get: func(c *Config) string { return strconv.Itoa(int(max(c.StrayRetention, -time.Hour) / time.Hour)) },
		},
		number("log.open.files.max", 16, math.MaxInt32, "The most files of segments that are kept open.", func(c *Config) *int { return &c.OpenFilesMax }),
	}...)
}

// javaDouble writes a number as Java does, which tools compare.
func javaDouble(v float64) string {
	s := strings.ToUpper(strconv.FormatFloat(v, 'g', -1, 64))
	s = strings.Replace(s, "E+", "E", 1)
	if !strings.ContainsAny(s, ".E") {
		s += ".0"
	}
	return s
}

func setDataDirs(c *Config, value string) error {
	dirs := cluster.SplitList(value)
	if len(dirs) == 0 {
		return fmt.Errorf("it is empty")
	}
	c.DataDir, c.MoreDataDirs = dirs[0], dirs[1:]
	return nil
}

func setInt(least, most int64, assign func(*Config, int64)) func(*Config, string) error {
	return func(c *Config, value string) error {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", value)
		}
		if n < least || n > most {
			return fmt.Errorf("%d is out of bounds; it must be from %d to %d", n, least, most)
		}
		assign(c, n)
		return nil
	}
}

func number(name string, least, most int64, doc string, field func(*Config) *int) property {
	return property{
		name: name, typ: cluster.ConfigInt, doc: doc, min: float64(least), max: float64(most),
		set: setInt(least, most, func(c *Config, n int64) { *field(c) = int(n) }),
		get: func(c *Config) string { return strconv.Itoa(*field(c)) },
	}
}

func duration(name string, unit time.Duration, doc string, field func(*Config) *time.Duration) property {
	return property{
		name: name, typ: cluster.ConfigLong, doc: doc, min: 1, max: float64(math.MaxInt64 / int64(unit)),
		set: setInt(1, math.MaxInt64/int64(unit), func(c *Config, n int64) { *field(c) = time.Duration(n) * unit }),
		get: func(c *Config) string { return strconv.FormatInt(int64(*field(c)/unit), 10) },
	}
}

func text(name, doc string, field func(*Config) *string) property {
	return property{
		name: name, typ: cluster.ConfigString, doc: doc,
		set: func(c *Config, value string) error {
			if value == "" {
				return fmt.Errorf("it is empty")
			}
			*field(c) = value
			return nil
		},
		get: func(c *Config) string { return *field(c) },
	}
}

func list(name, doc string, field func(*Config) *[]string) property {
	return property{
		name: name, typ: cluster.ConfigList, doc: doc,
		set: func(c *Config, value string) error {
			words := cluster.SplitList(value)
			if len(words) == 0 {
				return fmt.Errorf("it is empty")
			}
			*field(c) = words
			return nil
		},
		get: func(c *Config) string { return strings.Join(*field(c), ",") },
	}
}

// intervalOrNone is a time in milliseconds that may be 0, which the field has as below zero.
func intervalOrNone(name, doc string, field func(*Config) *time.Duration) property {
	return property{
		name: name, typ: cluster.ConfigInt, doc: doc, max: math.MaxInt32,
		set: setInt(0, math.MaxInt32, func(c *Config, n int64) {
			*field(c) = time.Duration(n) * time.Millisecond
			if n == 0 {
				*field(c) = -1
			}
		}),
		get: func(c *Config) string { return strconv.FormatInt(max(*field(c), 0).Milliseconds(), 10) },
	}
}

// assignorList is a list of the assignors that there are.
func assignorList(name, doc string, field func(*Config) *[]string) property {
	p := list(name, doc, field)
	set := p.set
	p.set = func(c *Config, value string) error {
		for _, word := range cluster.SplitList(value) {
			if !slices.Contains(group.Assignors(), word) {
				return fmt.Errorf("there is no assignor %q; there are %s", word, strings.Join(group.Assignors(), ", "))
			}
		}
		return set(c, value)
	}
	return p
}

// only is a property of Kafka's of which there is one value here.
func only(name, value, doc string) property {
	return property{
		name: name, typ: cluster.ConfigString, doc: doc,
		set: func(_ *Config, given string) error {
			if !strings.EqualFold(given, value) {
				return fmt.Errorf("%q is not supported; only %q is", given, value)
			}
			return nil
		},
		get: func(*Config) string { return value },
	}
}

// migrationPolicies are what group.consumer.migration.policy may be.
func migrationPolicies() map[string]group.MigrationPolicy {
	return map[string]group.MigrationPolicy{
		"bidirectional": group.MigrateBoth, "upgrade": group.MigrateUp, "downgrade": group.MigrateDown, "disabled": group.MigrateNever,
	}
}

func migrationPolicy(name, doc string) property {
	return property{
		name: name, typ: cluster.ConfigString, doc: doc,
		set: func(c *Config, given string) error {
			policy := strings.ToLower(given)
			if _, known := migrationPolicies()[policy]; !known {
				return fmt.Errorf("%q is none of bidirectional, upgrade, downgrade, disabled", given)
			}
			c.ConsumerGroupMigration = policy
			return nil
		},
		get: func(c *Config) string { return c.ConsumerGroupMigration },
	}
}

// negated is a property that is true by default; its field says the contrary.
func negated(name, doc string, field func(*Config) *bool) property {
	return property{
		name: name, typ: cluster.ConfigBoolean, doc: doc,
		set: func(c *Config, value string) error {
			on, err := strconv.ParseBool(strings.ToLower(value))
			if err != nil {
				return fmt.Errorf("%q is not true or false", value)
			}
			*field(c) = !on
			return nil
		},
		get: func(c *Config) string { return strconv.FormatBool(!*field(c)) },
	}
}

// propertyAliases are other names of properties.
func propertyAliases() map[string]string {
	return map[string]string{"broker.id": "node.id", "log.dir": "log.dirs"}
}

// setProperty sets one property by name. Unknown names give known false.
func (c *Config) setProperty(name, value string) (known bool, err error) {
	if known, err := cluster.CheckTopicDefault(name, value); known {
		if err != nil {
			return true, err
		}
		if c.TopicDefaults == nil {
			c.TopicDefaults = map[string]string{}
		}
		c.TopicDefaults[name] = value
		return true, nil
	}
	if alias, ok := propertyAliases()[name]; ok {
		name = alias
	}
	for _, p := range properties() {
		if p.name != name {
			continue
		}
		if err := p.set(c, value); err != nil {
			return true, err
		}
		if c.set == nil {
			c.set = map[string]bool{}
		}
		c.set[name] = true
		return true, nil
	}
	return false, nil
}

// SetFlag sets a property from the command line, over what a file says.
func (c *Config) SetFlag(name, value string) error {
	known, err := c.setProperty(name, value)
	switch {
	case !known:
		return fmt.Errorf("unknown property %q%s", name, suggestion(name))
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	}
	c.flags = maps.Clone(c.flags) // a Config is copied as a value
	if c.flags == nil {
		c.flags = map[string]bool{}
	}
	c.flags[name] = true
	return nil
}

// PropertyNames are all names that a configuration file may have, sorted.
func PropertyNames() []string {
	var out []string
	for _, p := range properties() {
		out = append(out, p.name)
	}
	for alias := range propertyAliases() {
		out = append(out, alias)
	}
	for _, d := range cluster.TopicConfigs() {
		for _, s := range d.Synonyms {
			out = append(out, s.Name)
		}
	}
	slices.Sort(out)
	return out
}

// Properties describes all settings, sorted by name, for DescribeConfigs and
// for the reference documentation.
func (c Config) Properties() []api.Property {
	c = c.withDefaults()
	defaults := Config{}.withDefaults()
	var out []api.Property
	for _, p := range properties() {
		value, def := p.get(&c), p.get(&defaults)
		described := api.Property{Name: p.name, Type: p.typ, Doc: p.doc, Default: &def, Dynamic: p.dynamic, Secret: p.secret}
		if c.set[p.name] || value != def {
			described.Static = &value
		}
		if def == "" {
			described.Default = nil
		}
		out = append(out, described)
	}
	for _, d := range cluster.TopicConfigs() {
		out = append(out, c.topicProperties(d)...)
	}
	for _, d := range dynamicOnlyConfigs() {
		out = append(out, api.Property{Name: d.Name, Type: d.Type, Doc: d.Doc, Dynamic: true})
	}
	slices.SortFunc(out, func(a, b api.Property) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// topicProperties are those that give a topic setting its default.
func (c Config) topicProperties(d cluster.ConfigDef) []api.Property {
	var names []string
	for _, s := range d.Synonyms {
		names = append(names, s.Name)
	}
	var out []api.Property
	for i, s := range d.Synonyms {
		p := api.Property{Name: s.Name, Type: d.Type, Doc: d.Doc, Dynamic: i == 0, Synonyms: names}
		if s.Unit != 1 {
			p.Type = cluster.ConfigInt // as in Kafka
		}
		switch {
		case len(names) == 1:
			p.Default = &d.Default
		case s.Default != "":
			p.Default = &s.Default
		}
		if value, set := c.TopicDefaults[s.Name]; set {
			p.Static = &value
		}
		out = append(out, p)
	}
	return out
}
