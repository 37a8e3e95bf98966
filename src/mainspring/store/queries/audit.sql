-- Who changed what, and when: written in the transaction of the change, never changed afterwards.

-- name: write_entry
INSERT INTO audit (tenant_id, actor, action, subject, detail) VALUES (:tenant_id, :actor, :action, :subject, :detail);

-- name: {page}
page AS (
    SELECT * FROM scanned
    WHERE (:action::text IS NULL OR action = :action)
      AND (:actor::text IS NULL OR actor = :actor)
      AND (:subject::text IS NULL OR subject = :subject)
    ORDER BY id DESC LIMIT :limit
), edge AS (
    SELECT count(*) AS scanned, min(id) AS edge FROM scanned
)
SELECT page.*, edge.scanned, edge.edge FROM edge LEFT JOIN page ON true ORDER BY page.id DESC

-- name: list_of_tenant
-- At most `:scan` entries are looked at, so that a filter which nothing matches stays cheap; the row
-- of `edge` says how far. The limit inside, which that never exceeds, is for the planner, as in
-- list_tasks.
WITH scanned AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, tenant_id, at, actor, action, subject, detail FROM audit
        WHERE tenant_id = :tenant_id AND id < :before ORDER BY id DESC LIMIT 10000
    ) newest LIMIT :scan
), {page};

-- name: list_all
-- The only list that names no tenant: for operators. Else like list_of_tenant.
WITH scanned AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, tenant_id, at, actor, action, subject, detail FROM audit
        WHERE id < :before ORDER BY id DESC LIMIT 10000
    ) newest LIMIT :scan
), {page};
