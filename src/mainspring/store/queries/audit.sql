-- Who changed what, and when: written in the transaction of the change, never changed afterwards.

-- name: write_entry
INSERT INTO audit (tenant_id, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5);

-- name: list_of_tenant
SELECT id, tenant_id, at, actor, action, subject, detail FROM audit
WHERE tenant_id = $6 AND id < $1
  AND ($3::text IS NULL OR action = $3)
  AND ($4::text IS NULL OR actor = $4)
  AND ($5::text IS NULL OR subject = $5)
ORDER BY id DESC LIMIT $2;

-- name: list_all
-- The only list that names no tenant: for operators.
SELECT id, tenant_id, at, actor, action, subject, detail FROM audit
WHERE id < $1
  AND ($3::text IS NULL OR action = $3)
  AND ($4::text IS NULL OR actor = $4)
  AND ($5::text IS NULL OR subject = $5)
ORDER BY id DESC LIMIT $2;
