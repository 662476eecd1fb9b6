-- What the orchestrators had Postgres do since the last reset, the dearest first.
SELECT round(s.total_exec_time::numeric, 1)::text AS total_ms, s.calls, round(s.mean_exec_time::numeric, 3)::text AS mean_ms, s.rows,
    round((s.wal_bytes / 1e6)::numeric, 1)::text AS wal_mb, s.shared_blks_hit AS hit, s.shared_blks_read AS read, regexp_replace(s.query, '\s+', ' ', 'g') AS query
FROM pg_stat_statements s JOIN pg_catalog.pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query !~ 'pg_stat_statements'
ORDER BY s.total_exec_time DESC;
