-- Webhook secrets and settings. Every statement of a tenant names it.

-- name: profiles
-- What sending for these tenants depends on: one row per live secret, or one without any.
SELECT t.tenant_id, s.id, s.kind, s.sealed, w.allow, w.deny, w.ca, w.certificate, w.sealed_key
FROM unnest(:tenant_ids::integer[]) AS t (tenant_id)
LEFT JOIN webhook_settings w ON w.tenant_id = t.tenant_id
LEFT JOIN webhook_secrets s ON s.tenant_id = t.tenant_id
    AND (s.expires_at IS NULL OR s.expires_at > clock_timestamp())
ORDER BY t.tenant_id, s.created_at DESC, s.id;

-- name: add
INSERT INTO webhook_secrets (tenant_id, id, name, kind, sealed, public_key)
SELECT :tenant_id, :id, :name, :kind, :sealed, :public_key
WHERE (SELECT count(*) FROM webhook_secrets
       WHERE tenant_id = :tenant_id AND (expires_at IS NULL OR expires_at > clock_timestamp())) < :most_live
RETURNING id, name, kind, public_key, created_at, expires_at;

-- name: list
SELECT id, name, kind, public_key, created_at, expires_at
FROM webhook_secrets
WHERE tenant_id = :tenant_id AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY created_at DESC, id;

-- name: lock
-- A live secret that is not on its way out already.
SELECT id, name, kind, public_key, created_at, expires_at
FROM webhook_secrets WHERE tenant_id = :tenant_id AND id = :secret_id AND expires_at IS NULL FOR UPDATE;

-- name: end_later
UPDATE webhook_secrets SET expires_at = clock_timestamp() + :overlap * interval '1 second'
WHERE tenant_id = :tenant_id AND id = :secret_id
RETURNING id, name, kind, public_key, created_at, expires_at;

-- name: delete
DELETE FROM webhook_secrets WHERE tenant_id = :tenant_id AND id = :secret_id RETURNING id;

-- name: get_settings
SELECT coalesce(w.allow, '{}') AS allow, coalesce(w.deny, '{}') AS deny, w.ca, w.certificate
FROM tenants t LEFT JOIN webhook_settings w ON w.tenant_id = t.id WHERE t.id = :tenant_id;

-- name: put_settings
INSERT INTO webhook_settings (tenant_id, allow, deny, ca, certificate, sealed_key)
SELECT id, :allow, :deny, :ca, :certificate, :sealed_key FROM tenants WHERE id = :tenant_id
ON CONFLICT (tenant_id) DO UPDATE SET allow = excluded.allow, deny = excluded.deny,
    ca = excluded.ca, certificate = excluded.certificate, sealed_key = excluded.sealed_key,
    updated_at = clock_timestamp()
RETURNING tenant_id;

-- name: sealed_secrets
SELECT tenant_id, id, sealed FROM webhook_secrets ORDER BY tenant_id, id;

-- name: reseal_secret
UPDATE webhook_secrets SET sealed = :fresh WHERE tenant_id = :tenant_id AND id = :id AND sealed = :sealed;

-- name: sealed_settings
SELECT tenant_id, sealed_key FROM webhook_settings WHERE sealed_key IS NOT NULL;

-- name: reseal_settings
UPDATE webhook_settings SET sealed_key = :fresh WHERE tenant_id = :tenant_id AND sealed_key = :sealed_key;

-- name: sealed_tasks
-- Tasks after a place, in the order of their keys; which of them hold ciphertext the caller sees.
SELECT tenant_id, id, spec FROM tasks
WHERE (tenant_id, id) > (:tenant_id::integer, :after::uuid) ORDER BY tenant_id, id LIMIT :limit;

-- name: reseal_task
UPDATE tasks SET spec = :fresh, rev = rev + 1
WHERE tenant_id = :tenant_id AND id = :id AND spec = :spec AND state <> 'running' RETURNING partition;

-- name: sealed_letters
SELECT tenant_id, id, spec FROM dead_letters
WHERE (tenant_id, id) > (:tenant_id::integer, :after::uuid) ORDER BY tenant_id, id LIMIT :limit;

-- name: reseal_letter
UPDATE dead_letters SET spec = :fresh WHERE tenant_id = :tenant_id AND id = :id AND spec = :spec;

-- name: sealed_schedules
SELECT tenant_id, id, template AS spec FROM schedules
WHERE (tenant_id, id) > (:tenant_id::integer, :after::uuid) ORDER BY tenant_id, id LIMIT :limit;

-- name: reseal_schedule
UPDATE schedules SET template = :fresh, rev = rev + 1
WHERE tenant_id = :tenant_id AND id = :id AND template = :spec;

-- name: wake
INSERT INTO wakes (partition, tenant_id, task_id) VALUES (:partition, :tenant_id, :task_id);

-- name: sealed_workflows
-- Versions whose steps may hold ciphertext; a definition may be long, so they come one by one.
SELECT tenant_id, name, version FROM workflow_versions
WHERE position('sealed'::bytea IN definition) > 0 ORDER BY tenant_id, name, version;

-- name: workflow_version
SELECT definition FROM workflow_versions WHERE tenant_id = :tenant_id AND name = :name AND version = :version;

-- name: reseal_workflow
UPDATE workflow_versions SET definition = :fresh
WHERE tenant_id = :tenant_id AND name = :name AND version = :version AND definition = :definition;
