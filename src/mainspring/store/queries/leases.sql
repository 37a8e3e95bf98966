-- Tasks that workers hold. The owner claims for them; any node extends, records and reads.

-- name: {leased}
t.tenant_id, t.id, t.fence, t.partition, t.attempts, t.failures,
    extract(epoch FROM t.due_at)::float8 AS due, extract(epoch FROM t.picked_at)::float8 AS picked,
    extract(epoch FROM t.lease_until)::float8 AS lease_end, t.spec, t.payload,
    extract(epoch FROM t.run_at)::float8 AS run, t.workflow_run_id, t.step, t.waited, t.earlier,
    t.capability, t.name, t.queue, t.labels, t.schedule_id, t.nominal_at,
    t.losses + t.unproven_losses > 0 AS suspect

-- name: claim_for_workers
-- Lease due tasks to workers that wait. Not to an incarnation that was replaced meanwhile. All leases
-- of a statement begin at one moment: who tells of them, or reads of it, works out one time and not many.
WITH node AS MATERIALIZED (
    SELECT n.id, clock_timestamp() AS now, f.floor, f.before FROM nodes n, fence_floor f
    WHERE n.id = :node_id AND n.epoch = :epoch AND n.beats >= :beats AND is_this_server(n.server_started)
    FOR KEY SHARE OF n
), pick AS MATERIALIZED (
    SELECT * FROM unnest(:tenant_id::integer[], :id::uuid[], :rev::integer[], :worker::text[], :incarnation::text[], :waited::jsonb[])
        AS p (tenant_id, id, rev, worker, incarnation, waited)
    WHERE NOT EXISTS (SELECT FROM workers w WHERE w.tenant_id = p.tenant_id AND w.name = p.worker
                      AND w.incarnation <> p.incarnation)
)
UPDATE tasks t
SET state = 'running', rev = t.rev + 1,
    fence = greatest(t.fence + 1, CASE WHEN t.created_at < node.before THEN node.floor END),
    attempts = t.attempts + 1,
    picked_at = node.now, lease_until = node.now + :lease * interval '1 second',
    worker = pick.worker, incarnation = pick.incarnation, progress = NULL, waited = pick.waited,
    began = false, began_alone = false
FROM pick, node
WHERE t.tenant_id = pick.tenant_id AND t.id = pick.id AND t.rev = pick.rev
  AND t.state = 'scheduled'
  AND t.due_at <= node.now
  AND (t.expires_at IS NULL OR t.expires_at > node.now)
RETURNING t.tenant_id, t.id, t.fence, t.partition, t.attempts, t.failures,
    extract(epoch FROM t.due_at)::float8 AS due, extract(epoch FROM t.picked_at)::float8 AS picked,
    extract(epoch FROM t.lease_until)::float8 AS lease_end, t.spec, t.payload,
    extract(epoch FROM t.run_at)::float8 AS run, t.workflow_run_id, t.step, NULL::jsonb AS waited, t.earlier,
    t.capability, t.name, t.queue, t.labels, t.schedule_id, t.nominal_at,
    t.losses + t.unproven_losses > 0 AS suspect;

-- name: claimed_for_workers
-- After a claim whose answer was lost: which of these did the workers get that they were claimed for? See `claims.claimed_by`
-- for the rev.
SELECT {leased}
FROM unnest(:tenant_id::integer[], :id::uuid[], :rev::integer[], :worker::text[], :incarnation::text[])
    AS p (tenant_id, id, rev, worker, incarnation)
JOIN tasks t ON t.tenant_id = p.tenant_id AND t.id = p.id
WHERE t.state = 'running' AND t.worker = p.worker AND t.incarnation = p.incarnation AND t.rev > p.rev;

-- name: extend_for_worker
-- A worker's heartbeat: its leases live on, but for those past their hard timeout. None reaches far beyond
-- it: half a lease is enough for the heartbeat that finds it over, and who falls silent before is not
-- waited for. One that comes early and says only that the execution began makes no lease longer: a worker
-- that dies soon afterwards is missed as early as without. A lease that an earlier incarnation holds is not
-- this one's.
WITH held AS MATERIALIZED (
    SELECT t.id, t.fence, h.progress, h.started, h.alone, clock_timestamp() AS now, t.picked_at
        + ((convert_from(t.spec, 'UTF8')::json ->> 'timeout')::float8 + :grace) * interval '1 second' AS last
    FROM unnest(:id::uuid[], :fence::integer[], :progress::bytea[], :started::boolean[], :alone::boolean[])
        AS h (id, fence, progress, started, alone)
    JOIN tasks t ON t.tenant_id = :tenant_id AND t.id = h.id AND t.fence = h.fence
    WHERE t.state = 'running' AND t.worker = :worker AND t.incarnation = :incarnation
)
UPDATE tasks t
SET progress = coalesce(held.progress, t.progress), began = t.began OR held.started,
    began_alone = t.began_alone OR held.started AND held.alone,
    lease_until = CASE WHEN held.now >= held.last THEN t.lease_until
                  WHEN held.started AND NOT t.began
                       AND t.lease_until > held.now + :lease / 3 * interval '1 second' THEN t.lease_until
                  ELSE least(held.now + :lease * interval '1 second',
                             held.last + :lease / 2 * interval '1 second') END
FROM held
WHERE t.tenant_id = :tenant_id AND t.id = held.id AND t.fence = held.fence AND t.state = 'running'
RETURNING t.tenant_id, t.id, extract(epoch FROM t.lease_until)::float8 AS lease_end,
    t.cancel_requested, held.now >= held.last AS overdue;

-- name: held_by_workers
-- The current executions of these tasks, guarded by fence, as their claims returned them.
SELECT t.tenant_id, t.id, t.fence, t.partition, t.attempts, t.failures,
    extract(epoch FROM t.due_at)::float8 AS due, extract(epoch FROM t.picked_at)::float8 AS picked,
    extract(epoch FROM t.lease_until)::float8 AS lease_end, t.spec, ''::bytea AS payload,
    extract(epoch FROM t.run_at)::float8 AS run, t.workflow_run_id, t.step, t.waited, t.earlier,
    t.cancel_requested
FROM unnest(:ids::uuid[], :fences::integer[]) AS held (id, fence)
JOIN tasks t ON t.tenant_id = :tenant_id AND t.id = held.id AND t.fence = held.fence
WHERE t.state = 'running' AND t.incarnation IS NOT NULL;

-- name: leased_tasks
-- What another node claimed for a worker of ours.
SELECT {leased}
FROM unnest(:ids::uuid[], :fences::integer[]) AS held (id, fence)
JOIN tasks t ON t.tenant_id = :tenant_id AND t.id = held.id AND t.fence = held.fence
WHERE t.state = 'running' AND t.incarnation IS NOT NULL;

-- name: judge_reports
-- Reports that changed nothing: was the same reported of the execution before, was it something else or is there a
-- newer execution, or is there no such task at all?
SELECT r.id, r.fence, r.outcome,
    EXISTS (SELECT FROM executions e WHERE e.tenant_id = :tenant_id AND e.task_id = r.id
              AND e.fence = r.fence AND e.finished_at >= time_of(r.id)
              -- Whatever is reported of an execution that was asked to cancel, but for its success, cancels it.
              AND (e.outcome = r.outcome OR e.outcome = 'cancelled' AND r.outcome <> 'succeeded'))
        AS recorded,
    EXISTS (SELECT FROM tasks t WHERE t.tenant_id = :tenant_id AND t.id = r.id)
      OR EXISTS (SELECT FROM task_history h WHERE h.tenant_id = :tenant_id AND h.id = r.id
                   AND h.finished_at >= time_of(r.id)) AS known
FROM unnest(:ids::uuid[], :fences::integer[], :outcomes::text[]) AS r (id, fence, outcome);
