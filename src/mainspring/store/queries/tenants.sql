-- Tenants, as operators see them.

-- name: create_tenant
INSERT INTO tenants (name, weight, max_running, spread) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO NOTHING
RETURNING id, name, weight, max_running, spread, created_at;

-- name: get_tenant
SELECT id, name, weight, max_running, spread, created_at FROM tenants WHERE id = $1;

-- name: list_tenants
SELECT id, name, weight, max_running, spread, created_at FROM tenants
WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: lock_tenant
-- Waits for inserts in flight, which hold the tenant's row: afterwards what is there is all.
SELECT id, name, weight, max_running, spread, created_at FROM tenants WHERE id = $1 FOR UPDATE;

-- name: has_unfinished
SELECT EXISTS (SELECT FROM tasks WHERE tenant_id = $1);

-- name: delete_tenant
-- Answers which keys end with it.
WITH departed AS (
    INSERT INTO departed_tenants (tenant_id) VALUES ($1)
), gone AS (
    DELETE FROM tenants WHERE id = $1
)
SELECT id FROM api_keys WHERE tenant_id = $1;

-- name: usage
SELECT t.weight, t.max_running, t.spread,
    (SELECT count(*) FROM tasks r WHERE r.tenant_id = t.id AND r.state = 'running') AS running,
    (SELECT count(*) FROM api_keys k WHERE k.tenant_id = t.id AND k.revoked_at IS NULL
        AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())) AS keys
FROM tenants t WHERE t.id = $1;

-- name: departed_tenants
SELECT tenant_id FROM departed_tenants ORDER BY tenant_id LIMIT $1;

-- name: tables_of_tenants
-- Every table that holds rows of tenants, whenever it was added; the audit log alone is kept.
SELECT c.relname AS name FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'tasks'::regclass)
  AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND c.relname NOT IN ('audit', 'departed_tenants')
ORDER BY c.relname;

-- name: allow_purge
SELECT set_config('mainspring.purge', 'on', true);

-- name: forget_tenant
DELETE FROM departed_tenants WHERE tenant_id = $1;
