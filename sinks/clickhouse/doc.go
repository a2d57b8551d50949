// Package clickhouse stores rows in a ClickHouse table, over the native protocol or HTTP.
//
// # Exactly once
//
// A claim is one INSERT of one block with an explicit column list and insert_deduplication_token set to the claim's identity. A table remembers the
// tokens of its last inserts when it has a dedup window: a Replicated table by default, a MergeTree table by
//
//	ALTER TABLE t MODIFY SETTING non_replicated_deduplication_window = 10000
//
// Then a write that is repeated, after a timeout that was none or by the next owner of the partition, changes nothing. Without a window the worker reads back
// the offsets of a claim before it repeats a write, which leaves one gap: a write that the server finishes after it was read back. The token is
// also the query ID, and a server refuses a second query of an ID that still runs.
//
// Every setting that bears on this is sent with each INSERT, whatever the server's profile says: async_insert=0 (an answer means stored),
// insert_deduplicate=1, deduplicate_blocks_in_dependent_materialized_views=1, distributed_foreground_insert=1, and block sizes
// that keep the claim in one block.
//
// # Columns
//
// The table must have _topic (String), _partition (an integer of 32 bits or more) and _offset (Int64 or UInt64): they make every row of the pipeline
// unique and let the worker read back what is stored. It should have _topic_id (String or UUID) too, which tells the rows of a topic from those of an
// earlier topic of its name: without it a partition is held when the table has rows that nothing vouches for. _time, if the table has it, gets the record's timestamp unless the
// pipeline maps it.
//
// Without `columns:` in the pipeline each column gets the field of its name. Columns with a DEFAULT are then left to the server, unless the pipeline's
// stages are known to make the field. MATERIALIZED, ALIAS and EPHEMERAL columns are never written.
//
// The server itself wraps and clamps: 300 into UInt8 becomes 44. So each value is checked against its column's type before it is sent; one
// that does not fit makes its record a dead letter. So does a null, or a missing field, for a column that is not Nullable.
package clickhouse
