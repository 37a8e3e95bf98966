-- Workflows: their definitions. Every statement names the tenant.

-- name: put_workflow
-- The row of the name is what writers queue at: each of them gets a version of its own. Nothing
-- comes back when the tenant is gone.
INSERT INTO workflows (tenant_id, name, version, step_count, on_failure)
SELECT t.id, :name, 1, :step_count, :on_failure FROM tenants t WHERE t.id = :tenant_id FOR KEY SHARE
ON CONFLICT (tenant_id, name) DO UPDATE
SET version = workflows.version + 1, step_count = EXCLUDED.step_count,
    on_failure = EXCLUDED.on_failure, updated_at = clock_timestamp(), archived_at = NULL
RETURNING version, updated_at;

-- name: put_version
INSERT INTO workflow_versions (tenant_id, name, version, step_count, definition, created_at)
VALUES (:tenant_id, :name, :version, :step_count, :definition, :created_at);

-- name: get_workflow
SELECT v.version, v.definition, v.created_at
FROM workflows w JOIN workflow_versions v
  ON v.tenant_id = w.tenant_id AND v.name = w.name AND v.version = coalesce(:version::integer, w.version)
WHERE w.tenant_id = :tenant_id AND w.name = :name AND w.archived_at IS NULL;

-- name: has_workflow
SELECT FROM workflows WHERE tenant_id = :tenant_id AND name = :name AND archived_at IS NULL;

-- name: lock_workflow
-- Held until the transaction ends: a change is decided on the version that is the latest now.
SELECT version FROM workflows
WHERE tenant_id = :tenant_id AND name = :name AND archived_at IS NULL FOR UPDATE;

-- name: archive_workflow
UPDATE workflows SET archived_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE tenant_id = :tenant_id AND name = :name;

-- name: list_workflows
SELECT name, version, step_count, on_failure, created_at, updated_at
FROM workflows
WHERE tenant_id = :tenant_id AND name > :after AND archived_at IS NULL
ORDER BY name LIMIT :limit;

-- name: list_versions
SELECT v.version, v.step_count, v.created_at
FROM workflows w JOIN workflow_versions v ON v.tenant_id = w.tenant_id AND v.name = w.name
WHERE w.tenant_id = :tenant_id AND w.name = :name AND v.version < :before AND w.archived_at IS NULL
ORDER BY v.version DESC LIMIT :limit;
