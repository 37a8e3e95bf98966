-- Tenants and API keys.

-- name: find_key
SELECT id, tenant_id, scopes, operator, secret_hash,
    extract(epoch FROM expires_at - clock_timestamp())::float8 AS expires_in
FROM api_keys
WHERE secret_hash = :secret_hash AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp());

-- name: add_key
-- Adding the same key again (a restart in development) changes nothing.
INSERT INTO api_keys (id, tenant_id, secret_hash, name, scopes, operator, prefix)
VALUES (:id, :tenant_id, :secret_hash, :name, :scopes, :operator, :prefix)
ON CONFLICT DO NOTHING;

-- name: touch_keys
-- When keys were last used, as so many seconds ago. Every node tells; the row is rewritten at most
-- once a minute, whoever tells.
WITH used AS MATERIALIZED (
    SELECT k.id, clock_timestamp() - u.ago * interval '1 second' AS at
    FROM api_keys k JOIN unnest(:ids::text[], :ago::float8[]) AS u (id, ago) ON k.id = u.id
    ORDER BY k.id FOR UPDATE OF k
)
UPDATE api_keys k SET last_used_at = used.at
FROM used WHERE k.id = used.id
  AND (k.last_used_at IS NULL OR k.last_used_at < used.at - interval '1 minute');

-- name: take_turn
-- Changes of one tenant's keys come one after the other, and none outlives the tenant.
SELECT id FROM tenants WHERE id = :tenant_id FOR NO KEY UPDATE;

-- name: count_live_keys
SELECT count(*) FROM api_keys
WHERE tenant_id = :tenant_id AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp());

-- name: create_key
INSERT INTO api_keys (id, tenant_id, secret_hash, name, scopes, prefix, expires_at)
VALUES (:id, :tenant_id, :secret_hash, :name, :scopes, :prefix,
        coalesce(:expires_at::timestamptz, clock_timestamp() + :expires_after::float8 * interval '1 second'))
RETURNING seq, id, prefix, name, scopes, operator, created_at, expires_at, last_used_at, revoked_at;

-- name: get_key
SELECT seq, id, prefix, name, scopes, operator, created_at, expires_at, last_used_at, revoked_at
FROM api_keys WHERE tenant_id = :tenant_id AND id = :key_id;

-- name: list_keys
SELECT seq, id, prefix, name, scopes, operator, created_at, expires_at, last_used_at, revoked_at
FROM api_keys WHERE tenant_id = :tenant_id AND seq < :before ORDER BY seq DESC LIMIT :limit;

-- name: revoke_key
UPDATE api_keys SET revoked_at = clock_timestamp()
WHERE tenant_id = :tenant_id AND id = :key_id AND revoked_at IS NULL RETURNING id;

-- name: revoke_operator
UPDATE api_keys SET revoked_at = clock_timestamp()
WHERE operator AND (id = :key OR secret_hash = :secret_hash) AND revoked_at IS NULL RETURNING id;

-- name: lock_live_key
-- A key that may be replaced, and for how long it was made.
SELECT id, name, scopes, operator, extract(epoch FROM expires_at - created_at)::float8 AS lifetime
FROM api_keys
WHERE tenant_id = :tenant_id AND id = :key_id AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
FOR UPDATE;

-- name: let_key_end
-- A key that was replaced lives on for a while, but never longer than it would have anyway.
UPDATE api_keys
SET expires_at = least(expires_at, clock_timestamp() + :grace * interval '1 second')
WHERE tenant_id = :tenant_id AND id = :key_id;

-- name: ensure_tenant
WITH made AS (
    INSERT INTO tenants (name) VALUES (:name) ON CONFLICT (name) DO NOTHING RETURNING id
)
SELECT id FROM made UNION ALL SELECT id FROM tenants WHERE name = :name LIMIT 1;

-- name: all_limits
SELECT id, weight, max_running, spread FROM tenants;

-- name: limits_of
SELECT id, weight, max_running, spread FROM tenants WHERE id = ANY (:ids::integer[]);
