// Package directory stores rows as files in a directory: Parquet or JSON lines, one file for each claim.
//
// # Files
//
//	TOPIC-PARTITION-ID-LO-HI.parquet           a finished file; LO and HI have 20 digits, ID is the topic's with 32
//	TOPIC-PARTITION-ID-LO-HI.json[.zst|.gz]    the same as JSON lines
//	.NAME.WRITER-N.tmp                         a file that WRITER (8 hex digits of a process) has not finished at its N-th try
//	_schema-VERSION.json                       the columns of the Parquet files, VERSION has 6 digits
//
// Names that begin with a point or an underscore are passed over by the readers of the Hadoop world.
//
// A file is written under its temporary name, synced and closed, and then published: linked under its final name, which fails when that is there
// already, and the directory is synced. So a final name always holds a whole file, and a claim written twice is stored once.
//
// # Recovery
//
// A worker that gets a partition lists the directory once. Final there: the claim is done, its whole range counts as stored. Temporary there: it
// is removed, whoever wrote it; a former owner of the partition that wakes up can then no longer publish it. The claim is written
// again whole.
//
// The ID tells a topic's files from those of an earlier topic of its name, whose offsets are the same. Names without it, as earlier versions gave, do not say
// which topic they are of; they count as stored only where the group's commit vouches for the topic.
//
// # Columns
//
// Every file has _topic, _partition, _offset and _time (the record's timestamp, microseconds, UTC), and then the sink's columns: those
// that the pipeline names, or else every top-level field of the events by its name. A field that is called like one of the four is left
// out. A raw line has its text as _raw, and its headers as columns unless it is a line that was kept because it did not parse.
//
// Columns of Parquet files have one type for all files of the directory, which the newest _schema file holds; all but the four are
// optional. Columns that the pipeline is known to make with their type (a stage's time, a label) are there from the first file on, also when they are
// always null; the type of any other is fixed when it first has a value, by the values of the batch:
//
//	bool             BOOLEAN
//	integer          INT64
//	number           DOUBLE, also when integers are among them
//	string           UTF8; also for values of several kinds, and integers above 2^63-1
//	time             TIMESTAMP (microseconds, UTC)
//	list, object     JSON
//
// A value that later does not fit its column's type, without loss, makes its record a dead letter; a column that was not there is added.
// Files written before have no such column: read them with union by name (DuckDB) or mergeSchema (Spark). Columns are never removed.
package directory
