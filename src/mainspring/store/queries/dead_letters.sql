-- Dead letters: tasks that failed for good and wait for a person.

-- name: find_letters
-- A page of ids, newest first, of unresolved ($4) and resolved ($5) letters. At most `scan` ($3) rows
-- are looked at, and a page ends early where its payloads would weigh too much ($13). The limits in
-- the branches are for the planner, as in list_tasks.
WITH scanned AS MATERIALIZED (
    SELECT * FROM (
        (SELECT id, name, queue, labels, fingerprint, died_at, octet_length(payload) AS size
        FROM dead_letters WHERE tenant_id = $1 AND id < $2 AND resolved_at IS NULL AND $4
        ORDER BY id DESC LIMIT 1000)
        UNION ALL
        (SELECT id, name, queue, labels, fingerprint, died_at, octet_length(payload) AS size
        FROM dead_letters WHERE tenant_id = $1 AND id < $2 AND resolved_at IS NOT NULL AND $5
        ORDER BY id DESC LIMIT 1000)
    ) every ORDER BY id DESC LIMIT $3
), page AS (
    SELECT id, sum(size) OVER (ORDER BY id DESC) - size AS weight FROM scanned
    WHERE ($6::text IS NULL OR name = $6)
      AND ($7::text IS NULL OR queue = $7)
      AND ($8::jsonb IS NULL OR labels @> $8)
      AND ($9::text IS NULL OR fingerprint = $9)
      AND ($10::timestamptz IS NULL OR died_at >= $10)
      AND ($11::timestamptz IS NULL OR died_at < $11)
    ORDER BY id DESC LIMIT $12
), edge AS (
    SELECT count(*) AS scanned, (SELECT id FROM scanned ORDER BY id LIMIT 1) AS edge,
        (SELECT count(*) FROM page) AS found
    FROM scanned
)
SELECT page.id, edge.scanned, edge.edge, edge.found
FROM edge LEFT JOIN page ON page.weight < $13 ORDER BY page.id DESC;

-- name: find_unresolved
-- The next ids in ($2, $11], oldest first: what a replay of many takes next.
WITH scanned AS MATERIALIZED (
    SELECT id, name, queue, labels, fingerprint, died_at FROM dead_letters
    WHERE tenant_id = $1 AND id > $2 AND id <= $11 AND resolved_at IS NULL ORDER BY id LIMIT $3
), page AS (
    SELECT id FROM scanned
    WHERE ($4::text IS NULL OR name = $4)
      AND ($5::text IS NULL OR queue = $5)
      AND ($6::jsonb IS NULL OR labels @> $6)
      AND ($7::text IS NULL OR fingerprint = $7)
      AND ($8::timestamptz IS NULL OR died_at >= $8)
      AND ($9::timestamptz IS NULL OR died_at < $9)
    ORDER BY id LIMIT $10
), edge AS (
    SELECT count(*) AS scanned, (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS edge FROM scanned
)
SELECT page.id, edge.scanned, edge.edge FROM edge LEFT JOIN page ON true ORDER BY page.id;

-- name: group_letters
-- What went wrong how often, among the newest ($3) letters: unresolved ($4), resolved ($5).
WITH scanned AS MATERIALIZED (
    SELECT * FROM (
        (SELECT id, name, queue, labels, fingerprint, died_at
        FROM dead_letters WHERE tenant_id = $1 AND resolved_at IS NULL AND $4
        ORDER BY id DESC LIMIT 100000)
        UNION ALL
        (SELECT id, name, queue, labels, fingerprint, died_at
        FROM dead_letters WHERE tenant_id = $1 AND resolved_at IS NOT NULL AND $5
        ORDER BY id DESC LIMIT 100000)
    ) every ORDER BY id DESC LIMIT $3
), kinds AS (
    SELECT fingerprint, count(*) AS count, min(died_at) AS first_at, max(died_at) AS last_at,
        (array_agg(id ORDER BY died_at DESC, id DESC))[1] AS example_id
    FROM scanned
    WHERE ($6::text IS NULL OR name = $6)
      AND ($7::text IS NULL OR queue = $7)
      AND ($8::jsonb IS NULL OR labels @> $8)
      AND ($9::text IS NULL OR fingerprint = $9)
      AND ($10::timestamptz IS NULL OR died_at >= $10)
      AND ($11::timestamptz IS NULL OR died_at < $11)
    GROUP BY fingerprint
)
SELECT k.fingerprint, d.final_error, k.count, k.first_at, k.last_at, k.example_id
FROM kinds k JOIN dead_letters d ON d.tenant_id = $1 AND d.id = k.example_id
ORDER BY k.count DESC, k.last_at DESC LIMIT $2;

-- name: read_letters
-- Letters as they read, the task first; what an older node did not copy is made up for.
SELECT id, coalesce(created_at, time_of(id)) AS created_at, coalesce(run_at, died_at) AS run_at,
    coalesce(due_at, died_at) AS due_at, expires_at, picked_at, started_at, died_at AS finished_at,
    coalesce(rev, 1) AS rev, coalesce(fence, 0) AS fence,
    coalesce((attempts -> -1 ->> 'attempt')::integer, 0) AS tries, concurrency_limit, priority,
    false AS cancel_requested, sla_met, 'failed' AS state, queue, concurrency_key, name, blame, labels,
    final_error AS error, lateness, spec,
    CASE WHEN $3::boolean THEN payload ELSE ''::bytea END AS payload, result, replay_of, schedule_id,
    nominal_at, workflow_run_id, step, NULL::bytea AS progress, reason, fingerprint, attempts,
    resolution, resolved_at, replayed_as
FROM dead_letters WHERE tenant_id = $1 AND id = ANY ($2::uuid[])
ORDER BY id DESC;

-- name: lock_letters
-- Held until the transaction ends, in id order: two replays of one letter go one after the other.
SELECT id, resolution, replayed_as FROM dead_letters
WHERE tenant_id = $1 AND id = ANY ($2::uuid[])
ORDER BY id FOR UPDATE;

-- name: mark_replayed
WITH marked AS (
    UPDATE dead_letters d
    SET resolution = 'replayed', resolved_at = clock_timestamp(), replayed_as = r.task_id
    FROM unnest($2::uuid[], $3::uuid[]) AS r (id, task_id)
    WHERE d.tenant_id = $1 AND d.id = r.id AND d.resolution IS DISTINCT FROM 'replayed'
    RETURNING d.id, d.replayed_as
)
INSERT INTO audit (tenant_id, actor, action, subject, detail)
SELECT $1, $4, 'dead_letter.replayed', id::text, jsonb_build_object('task', replayed_as) FROM marked;

-- name: archive_letters
WITH archived AS (
    UPDATE dead_letters SET resolution = 'archived', resolved_at = clock_timestamp()
    WHERE tenant_id = $1 AND id = ANY ($2::uuid[]) AND resolved_at IS NULL
    RETURNING id
)
INSERT INTO audit (tenant_id, actor, action, subject)
SELECT $1, $3, 'dead_letter.archived', id::text FROM archived;

-- name: purge_letter
DELETE FROM dead_letters WHERE tenant_id = $1 AND id = $2 RETURNING id;

-- name: count_outcomes
-- How these tasks fare: a try that failed counts, also where another will follow.
SELECT
    (SELECT count(*) FROM tasks
     WHERE tenant_id = $1 AND id = ANY ($2::uuid[]) AND failures > 0) AS failing,
    (SELECT count(*) FROM task_history
     WHERE tenant_id = $1 AND id = ANY ($2::uuid[]) AND finished_at >= time_of($3)
       AND state = 'failed') AS failed,
    (SELECT count(*) FROM task_history
     WHERE tenant_id = $1 AND id = ANY ($2::uuid[]) AND finished_at >= time_of($3)
       AND state <> 'failed') AS others;
