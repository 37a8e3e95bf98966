-- Runs of workflows, as the API sees them. Every statement names the tenant.

-- name: get_run
SELECT id, workflow, version, rev, state, stopping, total, unfinished, failed, input, created_at,
    finished_at, deadline_at, schedule_id, nominal_at
FROM workflow_runs WHERE tenant_id = :tenant_id AND id = :run_id;

-- name: list_runs
-- Newest first. At most `:scan` runs are looked at; the row of `edge` says how far.
WITH scanned AS MATERIALIZED (
    SELECT id, workflow, version, rev, state, stopping, total, unfinished, failed,
        '{}'::bytea AS input, created_at, finished_at, deadline_at, schedule_id, nominal_at
    FROM workflow_runs WHERE tenant_id = :tenant_id AND id < :before ORDER BY id DESC LIMIT :scan
), page AS (
    SELECT * FROM scanned
    WHERE (:workflow::text IS NULL OR workflow = :workflow) AND (:state::text IS NULL OR state = :state)
      AND (:schedule_id::uuid IS NULL OR schedule_id = :schedule_id)
    ORDER BY id DESC LIMIT :limit
), edge AS (
    SELECT count(*) AS scanned, (SELECT id FROM scanned ORDER BY id LIMIT 1) AS edge FROM scanned
)
SELECT page.*, edge.scanned, edge.edge FROM edge LEFT JOIN page ON true ORDER BY page.id DESC;

-- name: get_steps
-- The steps of a run and the items of its lists; the task says more of what is under way.
SELECT s.step, s.item, coalesce(t.state, s.state) AS state, s.task_id, s.needed, s.finished,
    s.waived, s.due_at, coalesce(s.started_at, t.picked_at) AS started_at, s.finished_at,
    greatest(s.attempts, t.attempts) AS attempts, s.result, coalesce(s.error, t.error) AS error,
    s.state = 'expanded' AS expanded
FROM workflow_steps s
LEFT JOIN tasks t ON t.tenant_id = s.tenant_id AND t.id = s.task_id
    AND s.state IN ('blocked', 'released', 'expanded')
WHERE s.run_id = :run_id AND s.tenant_id = :tenant_id AND (s.item = -1 OR :items)
ORDER BY s.step, s.item;

-- name: lock_run
SELECT tenant_id, id, workflow, version, state, stopping, unfinished, failed FROM workflow_runs
WHERE tenant_id = :tenant_id AND id = :run_id FOR NO KEY UPDATE;

-- name: all_steps
SELECT step, item, state, waived, state = 'skipped' AND coalesce(error ->> 'code' = :fail_fast, false) AS left_out
FROM workflow_steps WHERE tenant_id = :tenant_id AND run_id = :run_id;

-- name: given_up
-- The tasks of steps and of their items that may have left dead letters.
SELECT step, task_id FROM workflow_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step = ANY (:steps::text[]) AND state IN ('failed', 'skipped');

-- name: drop_items
-- Items of steps that are to be done once more; of some of them (:same) those stay that completed.
DELETE FROM workflow_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step = ANY (:steps::text[]) AND item >= 0
  AND (state <> 'completed' OR step <> ALL (:same::text[]));

-- name: reset_steps
-- Steps that are to be done once more: with new tasks, and counted anew what they wait for.
UPDATE workflow_steps s
SET state = 'blocked', task_id = coalesce(i.task_id, s.task_id), needed = i.needed, finished = i.finished,
    succeeded = i.succeeded, failed = i.failed, attempts = 0, waived = false, due_at = NULL,
    started_at = NULL, finished_at = NULL, result = NULL, error = NULL
FROM unnest(:steps::text[], :task_ids::uuid[], :needed::integer[], :finished::integer[], :succeeded::integer[], :failed::integer[])
    AS i (step, task_id, needed, finished, succeeded, failed)
WHERE s.tenant_id = :tenant_id AND s.run_id = :run_id AND s.step = i.step AND s.item = -1;

-- name: reopen_run
-- What was paused stays so: tasks of its steps are.
UPDATE workflow_runs
SET state = CASE WHEN state = 'paused' THEN 'paused' ELSE 'running' END, stopping = :stopping, finished_at = NULL,
    unfinished = :unfinished, failed = :failed, deadline_at = to_timestamp(:deadline), rev = rev + 1
WHERE tenant_id = :tenant_id AND id = :run_id
RETURNING tenant_id, id, workflow, version, state, stopping, unfinished, failed;

-- name: waive
-- A step that ended is skipped by hand: those after it see a success.
UPDATE workflow_steps SET state = 'skipped', waived = true
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step = :step AND item = -1;

-- name: delete_old_runs
-- Runs that ended so many days ago, with their steps, a few at a time.
WITH old AS (
    SELECT tenant_id, id FROM workflow_runs
    WHERE finished_at < now() - :keep_days * interval '1 day'
    ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED
), steps AS (
    DELETE FROM workflow_steps s USING old WHERE s.tenant_id = old.tenant_id AND s.run_id = old.id
)
DELETE FROM workflow_runs r USING old WHERE r.tenant_id = old.tenant_id AND r.id = old.id
RETURNING r.id;

-- name: whose_task
-- A task whose present try this is: the schedule it belongs to, and whether it shall stop.
SELECT schedule_id, extract(epoch FROM nominal_at)::float8 AS nominal, cancel_requested FROM tasks
WHERE tenant_id = :tenant_id AND id = :task_id AND fence = :fence AND state = 'running';

-- name: which_ended
SELECT r.id, r.state FROM unnest(:tenant_ids::integer[], :ids::uuid[]) AS wanted (tenant_id, id)
JOIN workflow_runs r ON r.tenant_id = wanted.tenant_id AND r.id = wanted.id
WHERE r.finished_at IS NOT NULL;
