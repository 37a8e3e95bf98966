-- What the owner of a partition asks of the store. Every statement that acts for an owner
-- share-locks the node's own row with its epoch: a takeover, which changes that row first, waits
-- for statements in flight, and a node that was replaced changes nothing. Nor does one of which the
-- database counted fewer heartbeats than it knows of (:beats): the database was set back.

-- name: claim
-- Lease due tasks. What comes back is what may be started; the rest is looked at again.
WITH node AS MATERIALIZED (
    SELECT n.id, f.floor, f.before FROM nodes n, fence_floor f
    WHERE n.id = :node_id AND n.epoch = :epoch AND n.beats >= :beats AND is_this_server(n.server_started)
    FOR KEY SHARE OF n
)
UPDATE tasks t
SET state = 'running', rev = t.rev + 1,
    fence = greatest(t.fence + 1, CASE WHEN t.created_at < node.before THEN node.floor END),
    attempts = t.attempts + 1,
    picked_at = clock_timestamp(), lease_until = clock_timestamp() + :lease * interval '1 second',
    worker = :worker, waited = pick.waited
FROM unnest(:tenant_ids::integer[], :ids::uuid[], :revs::integer[], :waited::jsonb[]) AS pick (tenant_id, id, rev, waited), node
WHERE t.tenant_id = pick.tenant_id AND t.id = pick.id AND t.rev = pick.rev
  AND t.state = 'scheduled'
  AND t.due_at <= clock_timestamp()
  AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
RETURNING t.tenant_id, t.id, t.fence, t.partition, t.attempts, t.failures,
    extract(epoch FROM t.due_at)::float8 AS due, extract(epoch FROM t.picked_at)::float8 AS picked,
    extract(epoch FROM t.lease_until)::float8 AS lease_end, t.spec, t.payload,
    extract(epoch FROM t.run_at)::float8 AS run, t.workflow_run_id, t.step, NULL::jsonb AS waited, t.earlier;

-- name: void_claim
-- After a claim whose answer was lost: it may still be on its way. This waits for it if it has
-- begun, and else makes its revs stale, so that it changes nothing when it arrives.
UPDATE tasks t SET rev = t.rev + 1
FROM unnest(:tenant_ids::integer[], :ids::uuid[], :revs::integer[]) AS pick (tenant_id, id, rev)
WHERE t.tenant_id = pick.tenant_id AND t.id = pick.id AND t.rev = pick.rev
  AND t.state = 'scheduled';

-- name: claimed_by
-- After that: which of these did we get? One whose rev is no higher is an earlier execution of ours, in a
-- database that was set back meanwhile.
SELECT t.tenant_id, t.id, fence, partition, attempts, failures,
    extract(epoch FROM due_at)::float8 AS due, extract(epoch FROM picked_at)::float8 AS picked,
    extract(epoch FROM lease_until)::float8 AS lease_end, spec, payload,
    extract(epoch FROM run_at)::float8 AS run, workflow_run_id, step, waited, earlier
FROM unnest(:tenant_ids::integer[], :ids::uuid[], :revs::integer[]) AS pick (tenant_id, id, rev)
JOIN tasks t ON t.tenant_id = pick.tenant_id AND t.id = pick.id
WHERE t.state = 'running' AND t.worker = :worker AND t.rev > pick.rev;

-- name: load_window
-- The window of some partitions: what is running, and of each stream the first few that are due
-- in (after, until].
SELECT tenant_id, id, rev, partition, state, queue, capability, concurrency_key, concurrency_limit,
    priority, due, expires, fence, lease_end, cancel_requested, worker, incarnation, waited
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY partition, state, tenant_id, queue, capability, concurrency_key, priority
        ORDER BY due_at
    ) AS nth
    FROM window_rows
    WHERE partition = ANY (:partitions::smallint[]) AND NOT parked
      AND due_at > to_timestamp(:after) AND due_at <= to_timestamp(:until)
) ranked
WHERE state = 'running' OR nth <= :cap;

-- name: load_more
-- The next of a stream that did not fit the window before.
SELECT tenant_id, id, rev, partition, state, queue, capability, concurrency_key, concurrency_limit,
    priority, due, expires, fence, lease_end, cancel_requested, worker, incarnation, waited
FROM window_rows
WHERE partition = :partition AND NOT parked AND state = 'scheduled' AND tenant_id = :tenant_id
  AND due_at >= to_timestamp(:since) AND due_at <= to_timestamp(:until)
  AND queue = :queue AND capability = :capability AND concurrency_key IS NOT DISTINCT FROM :concurrency_key
  AND priority = :priority
  AND id <> ALL (:known::uuid[])
ORDER BY due_at
LIMIT :limit;

-- name: served_elsewhere
-- Of these workers, those that have held tasks in the partitions of other nodes.
SELECT DISTINCT l.tenant_id, l.name
FROM worker_leases l
JOIN unnest(:tenant_ids::integer[], :names::text[]) AS w (tenant_id, name)
    ON w.tenant_id = l.tenant_id AND w.name = l.name
JOIN nodes n ON n.id = l.node_id AND n.state = 'active'
WHERE l.node_id <> :node_id;

-- name: poll_wakes
-- What others changed, at most so much of it, and off with those wakes of which the engine has heard
-- (:heard). So a statement that is lost, or comes late, takes nothing away that is not known; what is read
-- twice does no harm. A task that is no longer there comes back without a rev.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats AND is_this_server(server_started)
    FOR KEY SHARE
), heard AS (
    DELETE FROM wakes w USING node WHERE w.id = ANY (:heard::bigint[])
), woken AS (
    SELECT w.id, w.tenant_id, w.task_id
    -- In any order, so that no flood of one partition keeps the others waiting.
    FROM node, (SELECT * FROM unnest(:partitions::smallint[]) AS p (partition) ORDER BY random()) ours
    CROSS JOIN LATERAL (
        -- A sub-select is hashed, whatever is planned for. An array in a parameter is searched from its
        -- beginning, for every row.
        SELECT * FROM wakes
        WHERE partition = ours.partition AND id NOT IN (SELECT unnest(:heard::bigint[]))
        LIMIT :limit
    ) w
    LIMIT :limit
)
SELECT w.tenant_id, w.task_id AS id, rev, partition, state, queue, capability, concurrency_key,
    concurrency_limit, priority, due, expires, fence, lease_end, cancel_requested, worker, incarnation,
    waited, w.wakes
FROM (
    SELECT tenant_id, task_id, array_agg(id) AS wakes FROM woken GROUP BY tenant_id, task_id
) w
-- OFFSET 0 keeps this a look-up per wake. As a join it may be planned while both tables are empty,
-- and then compares each task with each wake.
LEFT JOIN LATERAL (
    SELECT * FROM window_rows WHERE tenant_id = w.tenant_id AND id = w.task_id OFFSET 0
) t ON true;

-- name: look_at
-- The same for tasks we wonder about ourselves.
SELECT w.tenant_id, w.id, rev, partition, state, queue, capability, concurrency_key,
    concurrency_limit, priority, due, expires, fence, lease_end, cancel_requested, worker, incarnation,
    waited
FROM unnest(:tenant_ids::integer[], :ids::uuid[]) AS w (tenant_id, id)
LEFT JOIN window_rows t ON t.tenant_id = w.tenant_id AND t.id = w.id;

-- name: extend
-- Long tasks keep their lease; the answer also carries requests to cancel.
UPDATE tasks t
SET lease_until = clock_timestamp() + :lease * interval '1 second'
FROM unnest(:tenant_ids::integer[], :ids::uuid[], :fences::integer[]) AS held (tenant_id, id, fence)
WHERE t.tenant_id = held.tenant_id AND t.id = held.id AND t.fence = held.fence
  AND t.state = 'running'
RETURNING t.tenant_id, t.id, extract(epoch FROM t.lease_until)::float8 AS lease_end, t.cancel_requested;
