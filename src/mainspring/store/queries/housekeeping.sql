-- Keeping house: whose duty it is, partitions of history ahead of time, and what is old out.

-- name: hold_duty
-- Become, or stay, the one who does a cluster-wide duty.
INSERT INTO duties AS d (name, holder, lease_until)
VALUES (:duty, :holder, clock_timestamp() + :lease * interval '1 second')
ON CONFLICT (name) DO UPDATE SET holder = :holder, lease_until = excluded.lease_until
WHERE d.holder = :holder OR d.lease_until < clock_timestamp()
RETURNING name;

-- name: drop_duties
DELETE FROM duties WHERE holder = :holder;

-- name: clear_default
-- Some rows of a default partition that are older than a day.
WITH gone AS (
    DELETE FROM {table} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {table} WHERE {column} < :oldest::date LIMIT :limit))
    RETURNING 1
)
SELECT count(*) AS gone FROM gone;

-- name: forget_expired
-- Rows of idempotency_keys or effects. The time is asked for again: a row that was renewed meanwhile must
-- not go with its old place. Only now() can be answered by the index; clock_timestamp() keeps the planner
-- to the places found.
WITH gone AS (
    DELETE FROM {expiring}
    WHERE expires_at < clock_timestamp() AND ctid = ANY (ARRAY(
        SELECT ctid FROM {expiring} WHERE expires_at < now() LIMIT :limit))
    RETURNING 1
)
SELECT count(*) AS gone FROM gone;

-- name: forget_old_events
-- What nobody took out of the outbox for a week, nobody waits for. The oldest come first, so no more
-- than a batch of them is looked at.
WITH gone AS (
    DELETE FROM outbox WHERE id = ANY (ARRAY(
        SELECT id FROM (SELECT id, created_at FROM outbox ORDER BY id LIMIT :limit) oldest
        WHERE created_at < clock_timestamp() - interval '7 days'))
    RETURNING 1
)
SELECT count(*) AS gone FROM gone;

-- name: forget_dead_nodes
DELETE FROM nodes n WHERE n.state <> 'active'
  AND n.heartbeat_at < clock_timestamp() - interval '1 hour'
  AND NOT EXISTS (SELECT FROM partitions p WHERE p.owner = n.id);

-- name: forget_gone_workers
DELETE FROM workers WHERE seen_at < clock_timestamp() - interval '1 day';

-- name: forget_gone_leases
-- What workers held that are gone, or in the partitions of nodes that are.
DELETE FROM worker_leases l
WHERE NOT EXISTS (SELECT FROM workers w WHERE w.tenant_id = l.tenant_id AND w.name = l.name)
   OR NOT EXISTS (SELECT FROM nodes n WHERE n.id = l.node_id);

-- name: forget_old_messages
DELETE FROM messages WHERE sent_at < clock_timestamp() - interval '1 minute';

-- name: forget_old_keys
-- Keys that ended long ago; the audit log still tells of them.
DELETE FROM api_keys
WHERE least(revoked_at, expires_at) < clock_timestamp() - :keep_days * interval '1 day';

-- name: oldest_transaction
-- Old snapshots keep dead rows alive and slow every claim down: worth a warning.
SELECT pid, coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::float8 AS age,
    coalesce(application_name, '') AS application
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
  AND backend_type = 'client backend'
ORDER BY xact_start NULLS LAST LIMIT 1;

-- name: missing_indexes
-- Indexes that a partitioned table has, and one of its partitions lacks; `built` is one that waits to be
-- attached, or, where it is not `whole`, what somebody left behind who was building it. The oldest partition
-- comes first, for it is the next that is detached.
SELECT parent.relname AS index, part.relname AS partition, quote_ident(home.nspname) AS home, built.relname IS NOT NULL AS built,
    coalesce(b.indisvalid, false) AS whole,
    part.relname || substr(parent.relname, length(divided.relname) + 1) AS name,
    substring(pg_get_indexdef(i.indexrelid) FROM ' USING .*') AS definition
FROM pg_index i
JOIN pg_class parent ON parent.oid = i.indexrelid AND parent.relkind = 'I'
JOIN pg_class divided ON divided.oid = i.indrelid
JOIN pg_inherits place ON place.inhparent = divided.oid
JOIN pg_class part ON part.oid = place.inhrelid
JOIN pg_namespace home ON home.oid = part.relnamespace
LEFT JOIN pg_class built ON built.relnamespace = part.relnamespace
    AND built.relname = part.relname || substr(parent.relname, length(divided.relname) + 1)
LEFT JOIN pg_index b ON b.indexrelid = built.oid
WHERE NOT i.indisvalid AND divided.relname = ANY (:tables::text[])
  AND divided.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'tasks'::regclass)
  AND NOT EXISTS (
      SELECT FROM pg_inherits attached JOIN pg_index a ON a.indexrelid = attached.inhrelid
      WHERE attached.inhparent = i.indexrelid AND a.indrelid = part.oid)
ORDER BY part.relname, parent.relname;

-- name: unfinished_indexes
-- Indexes that every partition has, and that do not count as whole all the same: the last partition that lacked
-- one was detached. To attach any of their parts once more lets PostgreSQL look again.
SELECT format('%I.%I', home.nspname, parent.relname) AS index,
    format('%I.%I', home.nspname, min(part.relname)) AS part
FROM pg_index i
JOIN pg_class parent ON parent.oid = i.indexrelid AND parent.relkind = 'I'
JOIN pg_class divided ON divided.oid = i.indrelid
JOIN pg_namespace home ON home.oid = divided.relnamespace
JOIN pg_inherits attached ON attached.inhparent = i.indexrelid
JOIN pg_class part ON part.oid = attached.inhrelid
WHERE NOT i.indisvalid AND divided.relname = ANY (:tables::text[])
  AND divided.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'tasks'::regclass)
GROUP BY home.nspname, parent.relname, i.indexrelid, i.indrelid
HAVING count(*) = (SELECT count(*) FROM pg_inherits WHERE inhparent = i.indrelid);
