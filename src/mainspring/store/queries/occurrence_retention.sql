-- Retention of the ledger of occurrences: by when a line was decided.

-- name: ledger_partitions
-- Months of the ledger, and days from before there were months, whose names say the month too: by `d` where a
-- node of that time made them.
SELECT child.relname AS name
FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
WHERE i.inhparent = 'occurrences'::regclass AND child.relname ~ '_[dm][0-9]{6,8}$'
ORDER BY child.relname;

-- name: detached_ledger_partitions
-- Tables that were detached and are neither dropped nor archived yet. By `d` they are from before.
SELECT c.relname AS name FROM pg_class c
WHERE c.relkind = 'r' AND c.relname ~ '^occurrences_[dm][0-9]{6,8}$'
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'tasks'::regclass) AND NOT c.relispartition
ORDER BY c.relname;

-- name: covered_to
-- The end of the last partition.
SELECT max(((regexp_match(pg_get_expr(child.relpartbound, child.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz
    AT TIME ZONE 'UTC')::date) AS covered_to
FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
WHERE i.inhparent = 'occurrences'::regclass;

-- name: in_default
-- Whether lines of that time lie in the default partition: asked without a lock that others wait for.
SELECT EXISTS (SELECT FROM occurrences_default WHERE nominal_at >= :first::timestamptz AND nominal_at < :end::timestamptz);

-- name: allow_clearing
-- Lets the ledger's trigger pass lines of schedules that exist, for this transaction.
SELECT set_config('mainspring.purge', 'on', true), set_config('mainspring.purge_ledger', 'on', true);

-- name: has_younger
-- Whether a line of a month was decided since then.
SELECT EXISTS (SELECT FROM {table} WHERE decided_at >= :oldest::timestamptz);

-- name: clear_table
-- Some old lines of a partition, the oldest first.
WITH gone AS (
    DELETE FROM {table} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {table} WHERE decided_at < :oldest::timestamptz ORDER BY decided_at LIMIT :limit))
    RETURNING 1
)
SELECT count(*) AS gone FROM gone;

-- name: deleted_schedule
SELECT tenant_id, id FROM deleted_schedules ORDER BY id LIMIT 1;

-- name: forget_schedule
DELETE FROM deleted_schedules WHERE id = :schedule_id;

-- name: note_deleted
INSERT INTO deleted_schedules (tenant_id, id) VALUES (:tenant_id, :schedule_id);

-- name: delete_lines
-- Some lines of a schedule, the oldest first: by its index, however many there are.
WITH gone AS (
    DELETE FROM occurrences WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id AND nominal_at <= (
        SELECT max(oldest.nominal_at) FROM (
            SELECT nominal_at FROM occurrences WHERE schedule_id = :schedule_id ORDER BY nominal_at LIMIT :limit) oldest)
    RETURNING 1
)
SELECT count(*) AS gone FROM gone;
