-- Tenants and API keys.

-- name: find_key
SELECT id, tenant_id, scopes, operator FROM api_keys
WHERE secret_hash = $1 AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp());

-- name: add_key
-- Adding the same key again (a restart in development) changes nothing.
INSERT INTO api_keys (id, tenant_id, secret_hash, name, scopes, operator)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING;

-- name: ensure_tenant
WITH made AS (
    INSERT INTO tenants (name) VALUES ($1) ON CONFLICT (name) DO NOTHING RETURNING id
)
SELECT id FROM made UNION ALL SELECT id FROM tenants WHERE name = $1 LIMIT 1;

-- name: all_limits
SELECT id, weight, max_running, spread FROM tenants;

-- name: set_limits
-- FOR UPDATE waits for inserts in flight, which hold the tenant's row: none lands in an old place.
-- Both the old and the new owner of a moved task are told.
WITH tenant AS MATERIALIZED (
    SELECT id FROM tenants WHERE id = $1 FOR UPDATE
), changed AS (
    UPDATE tenants t SET weight = $2, max_running = $3, spread = $4
    FROM tenant WHERE t.id = tenant.id RETURNING t.id
), moving AS MATERIALIZED (
    SELECT t.tenant_id, t.id, t.partition AS old,
        partition_of(t.tenant_id, t.id, t.concurrency_key, $4) AS new
    FROM tasks t JOIN changed ON t.tenant_id = changed.id
    ORDER BY t.tenant_id, t.id FOR UPDATE OF t
), moved AS (
    UPDATE tasks t SET partition = m.new, rev = t.rev + 1
    FROM moving m
    WHERE t.tenant_id = m.tenant_id AND t.id = m.id AND m.old <> m.new
    RETURNING t.tenant_id, t.id, m.old, m.new
)
INSERT INTO wakes (partition, tenant_id, task_id)
SELECT unnest(ARRAY[old, new]), tenant_id, id FROM moved;
