-- The table of examples/clickhouse/pipeline.yaml.
--
-- non_replicated_deduplication_window is what makes a retried insert harmless
-- in a table that is not replicated: the server remembers the tokens of the
-- last inserts and drops a block it already has.
CREATE TABLE IF NOT EXISTS page_views
(
    time        DateTime('UTC'),
    site        LowCardinality(String),
    host        LowCardinality(String),
    remote_addr String,
    method      LowCardinality(String),
    path        String,
    query       String,
    status      UInt16,
    bytes       UInt64,
    referer     String,
    user_agent  String,
    file_id     String,
    file_offset UInt64,
    _topic      LowCardinality(String),
    _topic_id   LowCardinality(String),
    _partition  Int32,
    _offset     Int64
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(time)
ORDER BY (site, time)
SETTINGS non_replicated_deduplication_window = 10000;
