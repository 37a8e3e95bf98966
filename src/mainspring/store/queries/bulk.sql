-- Changes of many tasks: found without locks, then locked in id order and looked at again.

-- name: newest_task
-- Where a change of many ends: what is created meanwhile is not meant.
SELECT id FROM tasks WHERE tenant_id = $1 ORDER BY id DESC LIMIT 1;

-- name: find_cancellable
-- The next unfinished tasks after $2 that match, oldest first. At most `scan` ($4) are looked at.
WITH scanned AS MATERIALIZED (
    SELECT id, state, queue, name, labels, due_at, cancel_requested, schedule_id, workflow_run_id
    FROM tasks
    WHERE tenant_id = $1 AND id > $2 AND id <= $3 ORDER BY id LIMIT $4
), page AS (
    SELECT id, state FROM scanned
    WHERE NOT cancel_requested
      AND ($6::text IS NULL OR state = $6)
      AND ($7::text IS NULL OR queue = $7)
      AND ($8::text IS NULL OR name = $8)
      AND ($9::jsonb IS NULL OR labels @> $9)
      AND ($10::timestamptz IS NULL OR due_at >= $10)
      AND ($11::timestamptz IS NULL OR due_at < $11)
      AND ($12::uuid IS NULL OR schedule_id = $12)
      AND ($13::uuid IS NULL OR workflow_run_id = $13)
    ORDER BY id LIMIT $5
), edge AS (
    SELECT count(*) AS scanned, (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS edge FROM scanned
)
SELECT page.id, page.state, edge.scanned, edge.edge FROM edge LEFT JOIN page ON true ORDER BY page.id;

-- name: lock_cancellable
-- The same tasks as they are now, held until the transaction ends.
SELECT id, rev, state, workflow_run_id, step FROM tasks
WHERE tenant_id = $1 AND id = ANY ($2::uuid[]) AND NOT cancel_requested
  AND ($3::text IS NULL OR state = $3)
  AND ($4::text IS NULL OR queue = $4)
  AND ($5::text IS NULL OR name = $5)
  AND ($6::jsonb IS NULL OR labels @> $6)
  AND ($7::timestamptz IS NULL OR due_at >= $7)
  AND ($8::timestamptz IS NULL OR due_at < $8)
  AND ($9::uuid IS NULL OR schedule_id = $9)
  AND ($10::uuid IS NULL OR workflow_run_id = $10)
ORDER BY id FOR UPDATE;

-- name: cancel_locked
-- What waits is over; what runs is asked to stop. The owners are told of both.
WITH locked AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::integer[]) AS l (id, rev)
), ended AS (
    DELETE FROM tasks t USING locked l
    WHERE t.tenant_id = $1 AND t.id = l.id AND t.rev = l.rev AND t.state <> 'running'
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
    WHERE t.tenant_id = $1 AND t.id = l.id AND t.rev = l.rev AND t.state = 'running'
    RETURNING t.id, t.partition
), touched AS (
    SELECT id, partition FROM ended UNION ALL SELECT id, partition FROM asked
), woken AS (
    INSERT INTO wakes (partition, tenant_id, task_id) SELECT partition, $1, id FROM touched
)
SELECT (SELECT count(*) FROM ended) AS cancelled, (SELECT count(*) FROM asked) AS cancel_requested,
    ARRAY(SELECT DISTINCT partition FROM touched) AS partitions;
