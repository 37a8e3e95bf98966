-- Webhook secrets and settings. Every statement of a tenant names it.

-- name: profiles
-- What sending for these tenants depends on: one row per live secret, or one without any.
SELECT t.tenant_id, s.id, s.kind, s.sealed, w.allow, w.deny, w.ca, w.certificate, w.sealed_key
FROM unnest($1::integer[]) AS t (tenant_id)
LEFT JOIN webhook_settings w ON w.tenant_id = t.tenant_id
LEFT JOIN webhook_secrets s ON s.tenant_id = t.tenant_id
    AND (s.expires_at IS NULL OR s.expires_at > clock_timestamp())
ORDER BY t.tenant_id, s.created_at DESC, s.id;

-- name: add
INSERT INTO webhook_secrets (tenant_id, id, name, kind, sealed, public_key)
SELECT $1, $2, $3, $4, $5, $6
WHERE (SELECT count(*) FROM webhook_secrets
       WHERE tenant_id = $1 AND (expires_at IS NULL OR expires_at > clock_timestamp())) < $7
RETURNING id, name, kind, public_key, created_at, expires_at;

-- name: list
SELECT id, name, kind, public_key, created_at, expires_at
FROM webhook_secrets
WHERE tenant_id = $1 AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY created_at DESC, id;

-- name: lock
-- A live secret that is not on its way out already.
SELECT id, name, kind, public_key, created_at, expires_at
FROM webhook_secrets WHERE tenant_id = $1 AND id = $2 AND expires_at IS NULL FOR UPDATE;

-- name: end_later
UPDATE webhook_secrets SET expires_at = clock_timestamp() + $3 * interval '1 second'
WHERE tenant_id = $1 AND id = $2
RETURNING id, name, kind, public_key, created_at, expires_at;

-- name: delete
DELETE FROM webhook_secrets WHERE tenant_id = $1 AND id = $2 RETURNING id;

-- name: get_settings
SELECT coalesce(w.allow, '{}') AS allow, coalesce(w.deny, '{}') AS deny, w.ca, w.certificate
FROM tenants t LEFT JOIN webhook_settings w ON w.tenant_id = t.id WHERE t.id = $1;

-- name: put_settings
INSERT INTO webhook_settings (tenant_id, allow, deny, ca, certificate, sealed_key)
SELECT id, $2, $3, $4, $5, $6 FROM tenants WHERE id = $1
ON CONFLICT (tenant_id) DO UPDATE SET allow = excluded.allow, deny = excluded.deny,
    ca = excluded.ca, certificate = excluded.certificate, sealed_key = excluded.sealed_key,
    updated_at = clock_timestamp()
RETURNING tenant_id;

-- name: sealed_secrets
SELECT tenant_id, id, sealed FROM webhook_secrets ORDER BY tenant_id, id;

-- name: reseal_secret
UPDATE webhook_secrets SET sealed = $4 WHERE tenant_id = $1 AND id = $2 AND sealed = $3;

-- name: sealed_settings
SELECT tenant_id, sealed_key FROM webhook_settings WHERE sealed_key IS NOT NULL;

-- name: reseal_settings
UPDATE webhook_settings SET sealed_key = $3 WHERE tenant_id = $1 AND sealed_key = $2;

-- name: sealed_tasks
-- Tasks after a place, in the order of their keys; which of them hold ciphertext the caller sees.
SELECT tenant_id, id, spec FROM tasks
WHERE (tenant_id, id) > ($1::integer, $2::uuid) ORDER BY tenant_id, id LIMIT $3;

-- name: reseal_task
UPDATE tasks SET spec = $4, rev = rev + 1
WHERE tenant_id = $1 AND id = $2 AND spec = $3 AND state <> 'running' RETURNING partition;

-- name: sealed_letters
SELECT tenant_id, id, spec FROM dead_letters
WHERE (tenant_id, id) > ($1::integer, $2::uuid) ORDER BY tenant_id, id LIMIT $3;

-- name: reseal_letter
UPDATE dead_letters SET spec = $4 WHERE tenant_id = $1 AND id = $2 AND spec = $3;

-- name: sealed_schedules
SELECT tenant_id, id, template AS spec FROM schedules
WHERE (tenant_id, id) > ($1::integer, $2::uuid) ORDER BY tenant_id, id LIMIT $3;

-- name: reseal_schedule
UPDATE schedules SET template = $4, rev = rev + 1
WHERE tenant_id = $1 AND id = $2 AND template = $3;

-- name: wake
INSERT INTO wakes (partition, tenant_id, task_id) VALUES ($1, $2, $3);
