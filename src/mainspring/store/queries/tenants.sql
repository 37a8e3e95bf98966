-- Tenants, as operators see them.

-- name: create_tenant
INSERT INTO tenants (name, weight, max_running, spread) VALUES (:name, :weight, :max_running, :spread)
ON CONFLICT (name) DO NOTHING
RETURNING id, name, weight, max_running, spread, created_at;

-- name: get_tenant
SELECT id, name, weight, max_running, spread, created_at FROM tenants WHERE id = :tenant_id;

-- name: list_tenants
SELECT id, name, weight, max_running, spread, created_at FROM tenants
WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: lock_tenant
-- Waits for inserts in flight, which hold the tenant's row: afterwards what is there is all.
SELECT id, name, weight, max_running, spread, created_at FROM tenants WHERE id = :tenant_id FOR UPDATE;

-- name: set_limits
UPDATE tenants SET weight = :weight, max_running = :max_running, spread = :spread WHERE id = :tenant_id;

-- name: move_tasks
-- To the places that follow from a new spread. To be run with the tenant's row held (lock_tenant), and
-- after that as a statement of its own: then it sees what the inserts wrote that were waited for, and no
-- task lands, or stays, in an old place. Both the old and the new owner of a moved task are told, but of
-- none that is due so late that it can be in nobody's window before this is committed: it will be
-- read in its new place.
WITH moving AS MATERIALIZED (
    SELECT t.tenant_id, t.id, t.partition AS old,
        partition_of(t.tenant_id, coalesce(t.schedule_id, t.id), t.concurrency_key, :spread) AS new
    FROM tasks t
    WHERE t.tenant_id = :tenant_id AND t.partition
        <> partition_of(t.tenant_id, coalesce(t.schedule_id, t.id), t.concurrency_key, :spread)
    ORDER BY t.id FOR UPDATE OF t
), moved AS (
    UPDATE tasks t SET partition = m.new, rev = t.rev + 1
    FROM moving m WHERE t.tenant_id = m.tenant_id AND t.id = m.id
    RETURNING t.tenant_id, t.id, t.due_at, m.old, m.new
)
INSERT INTO wakes (partition, tenant_id, task_id)
SELECT unnest(ARRAY[old, new]), tenant_id, id FROM moved
WHERE due_at <= clock_timestamp() + interval '1 hour';

-- name: has_unfinished
SELECT EXISTS (SELECT FROM tasks WHERE tenant_id = :tenant_id);

-- name: delete_tenant
-- Answers which keys end with it.
WITH departed AS (
    INSERT INTO departed_tenants (tenant_id) VALUES (:tenant_id)
), gone AS (
    DELETE FROM tenants WHERE id = :tenant_id
)
SELECT id FROM api_keys WHERE tenant_id = :tenant_id;

-- name: usage
-- No index knows what is running (a claim would have to change it), so tasks are looked at: the oldest,
-- of which most run, and `:scan` at most. The limit inside, which that never exceeds, is for the
-- planner, as in list_tasks.
SELECT t.weight, t.max_running, t.spread, seen.running,
    (SELECT count(*) FROM api_keys k WHERE k.tenant_id = t.id AND k.revoked_at IS NULL
        AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())) AS keys,
    seen.tasks = :scan AS running_at_least
FROM tenants t CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state = 'running') AS running, count(*) AS tasks
    FROM (SELECT state FROM (
        SELECT r.state FROM tasks r WHERE r.tenant_id = t.id ORDER BY r.id LIMIT 50000
    ) oldest LIMIT :scan) looked_at
) seen
WHERE t.id = :tenant_id;

-- name: departed_tenants
SELECT tenant_id FROM departed_tenants ORDER BY tenant_id LIMIT :limit;

-- name: tables_of_tenants
-- Every table that holds rows of tenants, whenever it was added; the audit log alone is kept.
SELECT c.relname AS name FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'tasks'::regclass)
  AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND c.relname NOT IN ('audit', 'departed_tenants')
ORDER BY c.relname;

-- name: clear_table
-- Some rows of a tenant, which may lie in several partitions. The table's name is the catalogue's own word.
WITH gone AS (
    DELETE FROM {table} WHERE tenant_id = :tenant_id AND (tableoid, ctid) IN (
        SELECT tableoid, ctid FROM {table} WHERE tenant_id = :tenant_id LIMIT :limit)
    RETURNING 1
)
SELECT count(*) AS gone FROM gone;

-- name: forget_tenant
DELETE FROM departed_tenants WHERE tenant_id = :tenant_id;
