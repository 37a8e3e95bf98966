-- Changes of many tasks: found without locks, then locked in id order and looked at again.

-- name: {matching}
AND (:state::text IS NULL OR state = :state)
  AND (:queue::text IS NULL OR queue = :queue)
  AND (:name::text IS NULL OR name = :name)
  AND (:labels::jsonb IS NULL OR labels @> :labels)
  AND (:due_after::timestamptz IS NULL OR due_at >= :due_after)
  AND (:due_before::timestamptz IS NULL OR due_at < :due_before)
  AND (:schedule_id::uuid IS NULL OR schedule_id = :schedule_id)
  AND (:workflow_run_id::uuid IS NULL OR workflow_run_id = :workflow_run_id)

-- name: newest_task
-- Where a change of many ends: what is created meanwhile is not meant.
SELECT id FROM tasks WHERE tenant_id = :tenant_id ORDER BY id DESC LIMIT 1;

-- name: find_cancellable
-- The next unfinished tasks after `:after` that match, oldest first. At most `:scan` are looked at.
WITH scanned AS MATERIALIZED (
    SELECT id, state, queue, name, labels, due_at, cancel_requested, schedule_id, workflow_run_id
    FROM tasks
    WHERE tenant_id = :tenant_id AND id > :after AND id <= :newest ORDER BY id LIMIT :scan
), page AS (
    SELECT id, state FROM scanned
    WHERE NOT cancel_requested
      {matching}
    ORDER BY id LIMIT :limit
), edge AS (
    SELECT count(*) AS scanned, (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS edge FROM scanned
)
SELECT page.id, page.state, edge.scanned, edge.edge FROM edge LEFT JOIN page ON true ORDER BY page.id;

-- name: lock_cancellable
-- The same tasks as they are now, held until the transaction ends.
SELECT id, rev, state, workflow_run_id, step FROM tasks
WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[]) AND NOT cancel_requested
  {matching}
ORDER BY id FOR UPDATE;

-- name: cancel_locked
-- What waits is over; what runs is asked to stop. The owners are told of both.
WITH locked AS MATERIALIZED (
    SELECT * FROM unnest(:ids::uuid[], :revs::integer[]) AS l (id, rev)
), ended AS (
    DELETE FROM tasks t USING locked l
    WHERE t.tenant_id = :tenant_id AND t.id = l.id AND t.rev = l.rev AND t.state <> 'running'
    RETURNING t.*, clock_timestamp() AS now
), history AS (
    INSERT INTO task_history (id, created_at, run_at, due_at, expires_at, finished_at,
        tenant_id, rev, fence, attempts, failures, concurrency_limit, priority, state, queue,
        capability, concurrency_key, name, labels, error, spec, payload, replay_of, schedule_id,
        nominal_at, workflow_run_id, step, started_at, sla_met, blame, lateness)
    SELECT id, created_at, run_at, due_at, expires_at, now,
        tenant_id, rev + 1, fence, attempts, failures, concurrency_limit, priority, 'cancelled', queue,
        capability, concurrency_key, name, labels, error, spec, payload, replay_of, schedule_id,
        nominal_at, workflow_run_id, step, j.*
    FROM ended CROSS JOIN LATERAL judge_end('cancelled', state, earlier, waited, due_at,
        paused_at, spec, now) AS j
), asked AS (
    UPDATE tasks t SET cancel_requested = true, rev = t.rev + 1
    FROM locked l
    WHERE t.tenant_id = :tenant_id AND t.id = l.id AND t.rev = l.rev AND t.state = 'running'
    RETURNING t.id, t.partition
), touched AS (
    SELECT id, partition FROM ended UNION ALL SELECT id, partition FROM asked
), woken AS (
    INSERT INTO wakes (partition, tenant_id, task_id) SELECT partition, :tenant_id, id FROM touched
)
SELECT (SELECT count(*) FROM ended) AS ended, (SELECT count(*) FROM asked) AS asked,
    ARRAY(SELECT DISTINCT partition FROM touched) AS partitions;
