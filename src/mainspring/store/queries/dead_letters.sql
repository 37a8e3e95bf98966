-- Dead letters: tasks that failed for good and wait for a person.

-- name: {matching}
(:name::text IS NULL OR name = :name)
  AND (:queue::text IS NULL OR queue = :queue)
  AND (:labels::jsonb IS NULL OR labels @> :labels)
  AND (:fingerprint::text IS NULL OR fingerprint = :fingerprint)
  AND (:died_after::timestamptz IS NULL OR died_at >= :died_after)
  AND (:died_before::timestamptz IS NULL OR died_at < :died_before)

-- name: find_letters
-- A page of ids, newest first, of unresolved (:unresolved) and resolved (:resolved) letters. At most `:scan` rows
-- are looked at, and a page ends early where its payloads would weigh too much (:heaviest). The limits in
-- the branches are for the planner, as in list_tasks.
WITH scanned AS MATERIALIZED (
    SELECT * FROM (
        (SELECT id, name, queue, labels, fingerprint, died_at, octet_length(payload) AS size
        FROM dead_letters WHERE tenant_id = :tenant_id AND id < :before AND resolved_at IS NULL AND :unresolved
        ORDER BY id DESC LIMIT 1000)
        UNION ALL
        (SELECT id, name, queue, labels, fingerprint, died_at, octet_length(payload) AS size
        FROM dead_letters WHERE tenant_id = :tenant_id AND id < :before AND resolved_at IS NOT NULL AND :resolved
        ORDER BY id DESC LIMIT 1000)
    ) every ORDER BY id DESC LIMIT :scan
), page AS (
    SELECT id, sum(size) OVER (ORDER BY id DESC) - size AS weight FROM scanned
    WHERE {matching}
    ORDER BY id DESC LIMIT :limit
), edge AS (
    SELECT count(*) AS scanned, (SELECT id FROM scanned ORDER BY id LIMIT 1) AS edge,
        (SELECT count(*) FROM page) AS found
    FROM scanned
)
SELECT page.id, edge.scanned, edge.edge, edge.found
FROM edge LEFT JOIN page ON page.weight < :heaviest ORDER BY page.id DESC;

-- name: find_unresolved
-- The next ids in (:after, :upto], oldest first: what a replay of many takes next.
WITH scanned AS MATERIALIZED (
    SELECT id, name, queue, labels, fingerprint, died_at FROM dead_letters
    WHERE tenant_id = :tenant_id AND id > :after AND id <= :upto AND resolved_at IS NULL ORDER BY id LIMIT :scan
), page AS (
    SELECT id FROM scanned
    WHERE {matching}
    ORDER BY id LIMIT :limit
), edge AS (
    SELECT count(*) AS scanned, (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS edge FROM scanned
)
SELECT page.id, edge.scanned, edge.edge FROM edge LEFT JOIN page ON true ORDER BY page.id;

-- name: group_letters
-- What went wrong how often, among the newest (:scan) letters: unresolved (:unresolved), resolved (:resolved).
WITH scanned AS MATERIALIZED (
    SELECT * FROM (
        (SELECT id, name, queue, labels, fingerprint, died_at
        FROM dead_letters WHERE tenant_id = :tenant_id AND resolved_at IS NULL AND :unresolved
        ORDER BY id DESC LIMIT 100000)
        UNION ALL
        (SELECT id, name, queue, labels, fingerprint, died_at
        FROM dead_letters WHERE tenant_id = :tenant_id AND resolved_at IS NOT NULL AND :resolved
        ORDER BY id DESC LIMIT 100000)
    ) every ORDER BY id DESC LIMIT :scan
), kinds AS (
    SELECT fingerprint, count(*) AS count, min(died_at) AS first_at, max(died_at) AS last_at,
        (array_agg(id ORDER BY died_at DESC, id DESC))[1] AS example_id
    FROM scanned
    WHERE {matching}
    GROUP BY fingerprint
)
SELECT k.fingerprint, d.final_error AS error, k.count, k.first_at, k.last_at, k.example_id
FROM kinds k JOIN dead_letters d ON d.tenant_id = :tenant_id AND d.id = k.example_id
ORDER BY k.count DESC, k.last_at DESC LIMIT :limit;

-- name: read_letters
-- Letters as they read, the task first; what an older node did not copy is replaced.
SELECT id, coalesce(created_at, time_of(id)) AS created_at, coalesce(run_at, died_at) AS run_at,
    coalesce(due_at, died_at) AS due_at, expires_at, picked_at, started_at, died_at AS finished_at,
    coalesce(rev, 1) AS rev, coalesce(fence, 0) AS fence,
    coalesce((attempts -> -1 ->> 'attempt')::integer, 0) AS attempts, concurrency_limit, priority,
    false AS cancel_requested, sla_met, 'failed' AS state, queue, concurrency_key, name, blame, labels,
    final_error AS error, lateness, spec,
    CASE WHEN :payloads::boolean THEN payload ELSE ''::bytea END AS payload, result, replay_of, schedule_id,
    nominal_at, workflow_run_id, step, NULL::bytea AS progress, reason, fingerprint, attempts AS executions,
    resolution, resolved_at, replayed_as
FROM dead_letters WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[])
ORDER BY id DESC;

-- name: lock_letters
-- Held until the transaction ends, in id order: two replays of one letter go one after the other.
SELECT id, resolution, replayed_as FROM dead_letters
WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[])
ORDER BY id FOR UPDATE;

-- name: mark_replayed
WITH marked AS (
    UPDATE dead_letters d
    SET resolution = 'replayed', resolved_at = clock_timestamp(), replayed_as = r.task_id
    FROM unnest(:ids::uuid[], :task_ids::uuid[]) AS r (id, task_id)
    WHERE d.tenant_id = :tenant_id AND d.id = r.id AND d.resolution IS DISTINCT FROM 'replayed'
    RETURNING d.id, d.replayed_as
)
INSERT INTO audit (tenant_id, actor, action, subject, detail)
SELECT :tenant_id, :actor, 'dead_letter.replayed', id::text, jsonb_build_object('task', replayed_as) FROM marked;

-- name: archive_letters
WITH archived AS (
    UPDATE dead_letters SET resolution = 'archived', resolved_at = clock_timestamp()
    WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[]) AND resolved_at IS NULL
    RETURNING id
)
INSERT INTO audit (tenant_id, actor, action, subject)
SELECT :tenant_id, :actor, 'dead_letter.archived', id::text FROM archived;

-- name: purge_letter
DELETE FROM dead_letters WHERE tenant_id = :tenant_id AND id = :letter_id RETURNING id;

-- name: count_outcomes
-- How these tasks ended: an execution that failed counts, also where another will follow.
SELECT
    (SELECT count(*) FROM tasks
     WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[]) AND failures > 0)
    + (SELECT count(*) FROM task_history
     WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[]) AND finished_at >= time_of(:first)
       AND state = 'failed') AS failed,
    (SELECT count(*) FROM task_history
     WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[]) AND finished_at >= time_of(:first)
       AND state <> 'failed') AS others;
