-- Who the workers are, and what they log.

-- name: register_worker
-- A process of a worker begins. The one before it under the same name is replaced; one that was
-- replaced gets no answer. What it offers is added to later, when it is touched: it may have come to
-- another node before, with another of its lanes.
INSERT INTO workers AS w (tenant_id, name, incarnation, offer, about)
VALUES (:tenant_id, :name, :incarnation, :offer, coalesce(:about, '{}'::jsonb))
ON CONFLICT (tenant_id, name) DO UPDATE
SET incarnation = excluded.incarnation, about = w.about || excluded.about,
    seen_at = clock_timestamp(),
    offer = CASE WHEN w.incarnation = excluded.incarnation THEN w.offer ELSE excluded.offer END,
    former = CASE WHEN w.incarnation = excluded.incarnation THEN w.former
             ELSE w.former[greatest(1, cardinality(w.former) - 18):] || w.incarnation END,
    started_at = CASE WHEN w.incarnation = excluded.incarnation THEN w.started_at
                 ELSE clock_timestamp() END
WHERE excluded.incarnation <> ALL (w.former)
RETURNING cardinality(former) > 0 AS replaced;

-- name: touch_workers
-- Workers that were heard of, with what they offered and did since the last time. What a process offers
-- adds up, whichever of its lanes asked at whichever node, to lists of :most_names names at most.
UPDATE workers w
SET seen_at = clock_timestamp(),
    offer = CASE WHEN t.offer IS NULL THEN w.offer ELSE t.offer || jsonb_build_object('commands',
        (w.offer ->> 'commands')::boolean OR (t.offer ->> 'commands')::boolean) || (
        SELECT jsonb_object_agg(kind, ARRAY(
            SELECT DISTINCT word COLLATE "C"
            FROM jsonb_array_elements_text((w.offer -> kind) || (t.offer -> kind)) AS word
            ORDER BY 1 LIMIT :most_names))
        FROM unnest('{queues,handlers,tags}'::text[]) AS kind) END,
    about = w.about || coalesce(t.about, '{}'::jsonb), leased = w.leased + t.leased,
    succeeded = w.succeeded + t.succeeded, failed = w.failed + t.failed,
    released = w.released + t.released
FROM unnest(:tenant_id::integer[], :name::text[], :incarnation::text[], :offer::jsonb[], :about::jsonb[], :leased::bigint[],
        :succeeded::bigint[], :failed::bigint[], :released::bigint[])
    AS t (tenant_id, name, incarnation, offer, about, leased, succeeded, failed, released)
WHERE w.tenant_id = t.tenant_id AND w.name = t.name AND w.incarnation = t.incarnation
RETURNING w.tenant_id, w.name;

-- name: is_current
SELECT NOT EXISTS (SELECT FROM workers
                   WHERE tenant_id = :tenant_id AND name = :name AND incarnation <> :incarnation) AS current;

-- name: note_held
-- How many tasks workers hold in the partitions of a node.
INSERT INTO worker_leases AS l (tenant_id, name, node_id, held)
SELECT h.tenant_id, h.name, :node_id, h.held
FROM unnest(:tenant_ids::integer[], :names::text[], :held::integer[]) AS h (tenant_id, name, held)
ORDER BY h.tenant_id, h.name
ON CONFLICT (tenant_id, name, node_id) DO UPDATE SET held = excluded.held;

-- name: list_workers
SELECT w.name, w.incarnation, w.offer, w.about, w.leased, w.succeeded, w.failed, w.released,
    w.started_at, w.seen_at, w.seq,
    coalesce((SELECT sum(l.held) FROM worker_leases l JOIN nodes n ON n.id = l.node_id
              WHERE l.tenant_id = w.tenant_id AND l.name = w.name AND n.state = 'active'), 0)::bigint
        AS held
FROM workers w
WHERE w.tenant_id = :tenant_id AND w.seq < :before
ORDER BY w.seq DESC LIMIT :limit;

-- name: worker_nodes
-- Where workers may ask for work.
SELECT n.id, n.url, (SELECT count(*) FROM partitions p WHERE p.owner = n.id) AS partitions
FROM nodes n
WHERE n.state = 'active' AND n.heartbeat_at > clock_timestamp() - :alive_within * interval '1 second'
ORDER BY n.id LIMIT 1000;

-- name: add_logs
-- Lines of executions that exist, up to :most of a task and :more_errors errors beyond: whoever logged much must not lose
-- its last words. Those of one task come in the order of the arrays.
WITH line AS (
    SELECT * FROM unnest(:task_id::uuid[], :fence::integer[], :at::float8[], :level::text[], :message::text[])
        WITH ORDINALITY AS l (task_id, fence, at, level, message, n)
), task AS MATERIALIZED (
    SELECT d.task_id, t.fence,
        (SELECT count(*) FROM (SELECT FROM task_logs g WHERE g.tenant_id = :tenant_id
                               AND g.task_id = d.task_id LIMIT :most::integer + :more_errors::integer) AS found) AS there
    FROM (SELECT DISTINCT task_id FROM line) d CROSS JOIN LATERAL (
        SELECT fence FROM tasks WHERE tenant_id = :tenant_id AND id = d.task_id
        UNION ALL
        SELECT fence FROM task_history
        WHERE tenant_id = :tenant_id AND id = d.task_id AND finished_at >= time_of(d.task_id)
        LIMIT 1
    ) t
), kept AS (
    SELECT l.*, k.there, k.there + row_number() OVER (PARTITION BY l.task_id ORDER BY l.n) AS nth
    FROM line l JOIN task k ON k.task_id = l.task_id AND l.fence <= k.fence
), beyond AS (
    SELECT n, GREATEST(there, :most) + row_number() OVER (PARTITION BY task_id ORDER BY n) AS nth
    FROM kept WHERE nth > :most AND level = 'error'
), added AS (
    INSERT INTO task_logs (tenant_id, task_id, fence, at, level, message)
    SELECT :tenant_id, task_id, fence, to_timestamp(at), level, message FROM kept
    WHERE nth <= :most OR n IN (SELECT n FROM beyond WHERE nth <= :most + :more_errors) ORDER BY n
    RETURNING 1
)
SELECT count(*) AS added FROM added;

-- name: list_logs
SELECT seq, fence, at, level, message FROM task_logs
WHERE tenant_id = :tenant_id AND task_id = :task_id AND seq > :after
ORDER BY seq LIMIT :limit;
