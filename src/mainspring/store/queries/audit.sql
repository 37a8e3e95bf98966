-- Who changed what, and when: written in the transaction of the change, never changed afterwards.

-- name: write_entry
INSERT INTO audit (tenant_id, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5);

-- name: list_of_tenant
-- At most `scan` ($6) entries are looked at, so that a filter which nothing matches stays cheap; the row
-- of `edge` says how far. The limit inside, which that never exceeds, is for the planner, as in
-- list_tasks.
WITH scanned AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, tenant_id, at, actor, action, subject, detail FROM audit
        WHERE tenant_id = $7 AND id < $1 ORDER BY id DESC LIMIT 10000
    ) newest LIMIT $6
), page AS (
    SELECT * FROM scanned
    WHERE ($3::text IS NULL OR action = $3)
      AND ($4::text IS NULL OR actor = $4)
      AND ($5::text IS NULL OR subject = $5)
    ORDER BY id DESC LIMIT $2
), edge AS (
    SELECT count(*) AS scanned, min(id) AS edge FROM scanned
)
SELECT page.*, edge.scanned, edge.edge FROM edge LEFT JOIN page ON true ORDER BY page.id DESC;

-- name: list_all
-- The only list that names no tenant: for operators. Else like list_of_tenant.
WITH scanned AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, tenant_id, at, actor, action, subject, detail FROM audit
        WHERE id < $1 ORDER BY id DESC LIMIT 10000
    ) newest LIMIT $6
), page AS (
    SELECT * FROM scanned
    WHERE ($3::text IS NULL OR action = $3)
      AND ($4::text IS NULL OR actor = $4)
      AND ($5::text IS NULL OR subject = $5)
    ORDER BY id DESC LIMIT $2
), edge AS (
    SELECT count(*) AS scanned, min(id) AS edge FROM scanned
)
SELECT page.*, edge.scanned, edge.edge FROM edge LEFT JOIN page ON true ORDER BY page.id DESC;
