-- Who changed what, and when: written in the transaction of the change, never changed afterwards.

-- name: write_entry
INSERT INTO audit (tenant_id, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5);

-- name: list_entries
SELECT id, at, actor, action, subject, detail FROM audit
WHERE tenant_id = $1 AND id < $2
  AND ($4::text IS NULL OR action = $4)
  AND ($5::text IS NULL OR actor = $5)
  AND ($6::text IS NULL OR subject = $6)
ORDER BY id DESC LIMIT $3;
