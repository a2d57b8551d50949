-- The questions of the quick start, on its Parquet files. Run each with DuckDB
-- or with clickhouse-local; README.md has the commands.

-- Top pages.
-- duckdb
SELECT path, count(*) AS views, count(DISTINCT remote_addr) AS visitors
FROM read_parquet('build/demo/table/*.parquet')
WHERE status < 400
GROUP BY path
ORDER BY views DESC, path
LIMIT 10;

-- clickhouse-local
SELECT path, count() AS views, uniqExact(remote_addr) AS visitors
FROM file('build/demo/table/*.parquet', Parquet)
WHERE status < 400
GROUP BY path
ORDER BY views DESC, path
LIMIT 10;

-- Visitors by hour.
-- duckdb
SELECT date_trunc('hour', time) AS hour, count(*) AS views, count(DISTINCT remote_addr) AS visitors
FROM read_parquet('build/demo/table/*.parquet')
GROUP BY hour
ORDER BY hour;

-- clickhouse-local
SELECT toStartOfHour(time) AS hour, count() AS views, uniqExact(remote_addr) AS visitors
FROM file('build/demo/table/*.parquet', Parquet)
GROUP BY hour
ORDER BY hour;
