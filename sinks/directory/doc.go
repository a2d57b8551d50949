// Package directory stores rows as files in a tree, on a local directory or any other [FS]: Parquet, Avro or JSON lines, one file for each path of a claim.
//
// # Files
//
//	PATH/TOPIC-PARTITION-ID-LO-HI.parquet           a finished file; LO and HI are the claim's, with 20 digits, ID is the topic's with 32
//	PATH/TOPIC-PARTITION-ID-LO-HI.json[.zst|.gz]    the same as JSON lines
//	PATH/TOPIC-PARTITION-ID-LO-HI.avro              the same as an object container file
//	PATH/_SUCCESS                                   nothing that is not late comes to this time partition any more
//	_schema-VERSION/columns.json                    the columns of Parquet and Avro files, VERSION has 6 digits
//	_sluice/TOPIC-PARTITION-ID/                     the ledger of a partition:
//	    entry-SEQ/entry.json                          its state, SEQ has 20 digits; the newest holds
//	    .NAME.WRITER-N.tmp                            what WRITER (8 hex digits of a process) has not finished at its N-th try
//
// PATH is that of partition.path, or nothing. Names that begin with a point or an underscore are passed over by the readers of the Hadoop world.
//
// # The ledger
//
// An entry holds, as JSON, the moves of one claim's files from their temporary names to where they belong, the ranges of offsets that are stored with it, the watermark,
// and the time partitions without a marker. It becomes the newest by the rename of a directory that holds it to the next number. A directory that is not empty is replaced by
// no rename, so each number is given once; the last entry before the newest stays, so that who lags behind by one finds its number taken, and who lags behind
// further finds a newer one after its rename. A process reads the newest entry before it adds one. So entries are the decisions of one process after the other.
//
// A claim is stored when the entry with its files is in the ledger. The moves come after, by whoever reads the entry; a file that is not there any more was moved before.
//
// # Recovery
//
// A worker that gets a partition reads the newest entry, ends its moves, and adds an entry of its own. After that no other process can add one without having read
// it, so the temporary files that it does not name are nobody's, and are removed. Where there is no ledger, names say what is stored: those of the whole
// tree once, and those of the root always, where earlier versions of this program put all files, without a ledger.
//
// The ID tells a topic's files from those of an earlier topic of its name, whose offsets are the same. Names without it, as still earlier versions gave, do not say
// which topic they are of; they count as stored only where the group's commit vouches for the topic.
//
// # Columns
//
// Every file has _topic, _partition, _offset and _time (the record's timestamp, microseconds, UTC), and then the sink's columns: those
// that the pipeline names, or else every top-level field of the events by its name. A field that is called like one of the four is left
// out. A raw line has its text as _raw, and its headers as columns unless it is a line that was kept because it did not parse.
//
// Columns of Parquet and Avro files have one type for all files of the directory, which the newest _schema file holds; all but the four are
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
