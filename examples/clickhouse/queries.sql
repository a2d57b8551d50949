-- Top pages.
SELECT path, count() AS views, uniqExact(remote_addr) AS visitors
FROM page_views
WHERE status < 400
GROUP BY path
ORDER BY views DESC, path
LIMIT 10;

-- Visitors by hour.
SELECT toStartOfHour(time) AS hour, count() AS views, uniqExact(remote_addr) AS visitors
FROM page_views
GROUP BY hour
ORDER BY hour;

-- Nothing is there twice: no rows.
SELECT _topic, _topic_id, _partition, _offset, count() AS copies
FROM page_views
GROUP BY _topic, _topic_id, _partition, _offset
HAVING copies > 1
LIMIT 10;
