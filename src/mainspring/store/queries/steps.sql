-- What becomes of the steps of runs. Whoever changes a step holds its run's row (`hold_runs`), so
-- that all of these see, and leave behind, a run that is one whole.

-- name: {scheduled_row}
tenant_id, id, rev, partition, state, queue, capability, concurrency_key, concurrency_limit,
    priority, extract(epoch FROM due_at)::float8 AS due, extract(epoch FROM expires_at)::float8 AS expires,
    fence, NULL::float8 AS lease_end, cancel_requested

-- name: plan_anew
-- Until the end of the transaction: a plan that was made while the tables were small would compare
-- each of thousands of rows with each of thousands.
SELECT set_config('plan_cache_mode', 'force_custom_plan', true);

-- name: hold_runs
-- Lock runs, in order: before any task of theirs is locked.
SELECT tenant_id, id, total FROM workflow_runs
WHERE (tenant_id, id) IN (SELECT * FROM unnest(:tenant_ids::integer[], :ids::uuid[]))
ORDER BY tenant_id, id FOR NO KEY UPDATE;

-- name: hold_runs_of
-- The same for the runs that some tasks of a tenant are steps of.
SELECT tenant_id, id FROM workflow_runs
WHERE tenant_id = :tenant_id AND id IN (
    SELECT workflow_run_id FROM tasks
    WHERE tenant_id = :tenant_id AND id = ANY (:task_ids::uuid[]) AND workflow_run_id IS NOT NULL)
ORDER BY id FOR NO KEY UPDATE;

-- name: advance
-- Steps that ended: each is noted, and all of them together are counted once in every step that
-- waits for them and once in their run. Comes back: the runs, each with those steps.
WITH ended AS (
    SELECT * FROM unnest(:tenant_id::integer[], :run_id::uuid[], :step::text[], :item::integer[], :state::text[],
        :started::float8[], :finished::float8[], :attempts::integer[], :result::bytea[], :error::jsonb[], :waived::boolean[])
    AS e (tenant_id, run_id, step, item, state, started, finished, attempts, result, error, waived)
), own AS (
    UPDATE workflow_steps s
    SET state = e.state, started_at = to_timestamp(e.started), attempts = coalesce(e.attempts, 0),
        finished_at = coalesce(to_timestamp(e.finished), clock_timestamp()),
        result = e.result, error = e.error, waived = coalesce(e.waived, false)
    FROM ended e
    WHERE s.tenant_id = e.tenant_id AND s.run_id = e.run_id AND s.step = e.step AND s.item = e.item
      AND s.state IN ('blocked', 'released', 'expanded')
    RETURNING s.tenant_id, s.run_id, s.item, s.state, s.children,
        (s.state = 'completed' OR s.waived) AS good,
        s.state IN ('failed', 'expired', 'cancelled') AS bad
), fed AS (
    -- Items are counted by the step that they are items of, once it is expanded; all else by steps
    -- that are blocked.
    SELECT tenant_id, run_id, child AS step,
        CASE WHEN item >= 0 THEN 'expanded' ELSE 'blocked' END AS waits, count(*) AS finished,
        count(*) FILTER (WHERE good) AS succeeded, count(*) FILTER (WHERE bad) AS failed
    FROM own, unnest(children) AS child GROUP BY tenant_id, run_id, child, item >= 0
), waiting AS (
    UPDATE workflow_steps s
    SET finished = s.finished + f.finished, succeeded = s.succeeded + f.succeeded,
        failed = s.failed + f.failed
    FROM fed f
    WHERE s.tenant_id = f.tenant_id AND s.run_id = f.run_id AND s.step = f.step AND s.item = -1
      AND s.state = f.waits
    RETURNING s.tenant_id, s.run_id, s.step, s.state, s.needed, s.finished, s.succeeded, s.failed
), counted AS (
    SELECT tenant_id, run_id, count(*) FILTER (WHERE item = -1) AS ended,
        count(*) FILTER (WHERE item = -1 AND bad) AS failed
    FROM own GROUP BY tenant_id, run_id
), runs AS (
    UPDATE workflow_runs r
    SET unfinished = r.unfinished - c.ended, failed = r.failed + c.failed, rev = r.rev + 1
    FROM counted c
    WHERE r.tenant_id = c.tenant_id AND r.id = c.run_id
    RETURNING r.tenant_id, r.id, r.workflow, r.version, r.state, r.stopping, r.unfinished, r.failed
)
SELECT r.*, w.step, w.state AS step_state, w.needed, w.finished, w.succeeded,
    w.failed AS step_failed
FROM runs r LEFT JOIN waiting w ON w.tenant_id = r.tenant_id AND w.run_id = r.id;

-- name: release
-- Steps whose turn has come: from blocked to scheduled, each once. A task goes where its run lives,
-- so that one node does it all; of very many at once (`wide`) each goes its own way.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats AND is_this_server(server_started)
    FOR KEY SHARE
), input AS (
    SELECT * FROM unnest(:tenant_ids::integer[], :run_ids::uuid[], :steps::text[], :due::float8[], :wide::boolean[],
        :specs::bytea[], :payloads::bytea[], :capabilities::text[], :concurrency_keys::text[], :names::text[], :labels::jsonb[])
    AS i (tenant_id, run_id, step, due, wide, spec, payload, capability, concurrency_key, name, labels)
), tenant AS MATERIALIZED (
    SELECT id, spread FROM tenants
    WHERE id IN (SELECT DISTINCT unnest(:tenant_ids::integer[])) FOR KEY SHARE
), freed AS (
    UPDATE workflow_steps s SET state = 'released', due_at = to_timestamp(i.due)
    FROM input i
    WHERE s.tenant_id = i.tenant_id AND s.run_id = i.run_id AND s.step = i.step AND s.item = -1
      AND s.state = 'blocked'
    RETURNING s.task_id, i.*
), begun AS (
    UPDATE tasks t
    SET state = 'scheduled', parked = false, rev = t.rev + 1, run_at = to_timestamp(i.due),
        due_at = to_timestamp(i.due), spec = coalesce(i.spec, t.spec),
        payload = coalesce(i.payload, t.payload), capability = coalesce(i.capability, t.capability),
        concurrency_key = coalesce(i.concurrency_key, t.concurrency_key),
        name = coalesce(i.name, t.name), labels = coalesce(i.labels, t.labels),
        partition = partition_of(t.tenant_id, CASE WHEN i.wide THEN t.id ELSE i.run_id END,
            coalesce(i.concurrency_key, t.concurrency_key), n.spread)
    FROM freed i JOIN tenant n ON n.id = i.tenant_id
    WHERE t.tenant_id = i.tenant_id AND t.id = i.task_id AND t.state = 'blocked'
    RETURNING t.*
), woken AS (
    INSERT INTO wakes (partition, tenant_id, task_id)
    SELECT partition, tenant_id, id FROM begun
    WHERE partition <> ALL (:partitions::smallint[]) OR NOT EXISTS (SELECT FROM node)
)
SELECT {scheduled_row} FROM begun;

-- name: expand
-- A step that becomes one task per item of its list: it waits for these now. Items that are there
-- already completed before it was begun again. The queue and the priority are those of its own task,
-- which may have been changed while it waited.
WITH kept AS (
    SELECT coalesce(array_agg(item), '{}') AS items FROM workflow_steps
    WHERE tenant_id = :tenant_id AND run_id = :run_id AND step = :step AND item >= 0
), own AS (
    SELECT t.queue, t.priority
    FROM workflow_steps s JOIN tasks t ON t.tenant_id = s.tenant_id AND t.id = s.task_id
    WHERE s.tenant_id = :tenant_id AND s.run_id = :run_id AND s.step = :step AND s.item = -1
)
UPDATE workflow_steps s
SET state = 'expanded', needed = :needed, finished = cardinality(kept.items),
    succeeded = cardinality(kept.items), failed = 0, due_at = to_timestamp(:due)
FROM kept, own
WHERE s.tenant_id = :tenant_id AND s.run_id = :run_id AND s.step = :step AND s.item = -1 AND s.state = 'blocked'
RETURNING kept.items, own.queue, own.priority;

-- name: queue_step
-- A step that shall not start as it is released.
UPDATE workflow_steps SET inside = false
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step = :step AND item = :item AND inside;

-- name: add_steps
-- Rows of steps or items (:step..), with their tasks. Tasks that are scheduled at once get a wake row
-- like any other. Without the rows, where these are there already, only tasks are made.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats AND is_this_server(server_started)
    FOR KEY SHARE
), tenant AS MATERIALIZED (
    SELECT id, spread FROM tenants WHERE id = :tenant_id FOR KEY SHARE
), input AS (
    SELECT * FROM unnest(:ids::uuid[], :labels_of_steps::text[], :task_states::text[], :due::float8[], :specs::bytea[], :payloads::bytea[],
        :capabilities::text[], :queue::text[], :priority::smallint[], :names::text[], :labels::jsonb[], :concurrency_keys::text[],
        :concurrency_limit::integer[])
    AS i (id, step, state, due, spec, payload, capability, queue, priority, name, labels,
          concurrency_key, concurrency_limit)
), rows AS (
    INSERT INTO workflow_steps (tenant_id, run_id, step, item, state, needed, children, task_id, due_at,
        plain, inside)
    SELECT t.id, :run_id, i.step, i.item, i.state, i.needed, string_to_array(i.children, ','), i.task_id,
        to_timestamp(i.due), i.plain, i.inside
    FROM tenant t, unnest(:step::text[], :item::integer[], :state::text[], :needed::integer[], :children::text[],
        :task_id::uuid[], :released::float8[], :plain::boolean[], :inside::boolean[])
        AS i (step, item, state, needed, children, task_id, due, plain, inside)
), made AS (
    INSERT INTO tasks (id, created_at, run_at, due_at, tenant_id, concurrency_limit, partition,
        priority, parked, state, queue, capability, concurrency_key, name, labels, spec, payload,
        workflow_run_id, step)
    SELECT i.id, clock_timestamp(), to_timestamp(i.due), to_timestamp(i.due), t.id, i.concurrency_limit,
        partition_of(t.id, CASE WHEN :wide THEN i.id ELSE :run_id::uuid END, i.concurrency_key, t.spread),
        i.priority, i.state = 'blocked', i.state, i.queue, i.capability, i.concurrency_key, i.name,
        i.labels, i.spec, i.payload, :run_id, i.step
    FROM input i, tenant t
    RETURNING *
), run AS (
    -- A new run (:workflow..): the steps are its own.
    INSERT INTO workflow_runs (tenant_id, id, workflow, version, partition, total, unfinished, input,
        created_at, deadline_at, schedule_id, nominal_at)
    SELECT t.id, :run_id, :workflow, :version, partition_of(t.id, :run_id, NULL, 256), :total, :total, :input,
        to_timestamp(:created), to_timestamp(:deadline), :schedule_id, to_timestamp(:nominal)
    FROM tenant t WHERE :workflow::text IS NOT NULL
), woken AS (
    INSERT INTO wakes (partition, tenant_id, task_id)
    SELECT partition, tenant_id, id FROM made
    WHERE state = 'scheduled'
      AND (partition <> ALL (:partitions::smallint[]) OR NOT EXISTS (SELECT FROM node))
)
SELECT {scheduled_row} FROM made WHERE state = 'scheduled';

-- name: hold_tasks
-- Lock tasks of steps, in order: what was being claimed or retried has been, and what is read from here
-- on stays as it is.
SELECT id FROM tasks WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[]) ORDER BY id FOR UPDATE;

-- name: end_tasks
-- Steps that end without running: skipped, cancelled, or joined. Their tasks move to history; owners
-- who may know of them are told. What runs is left alone, and does not come back from here.
WITH input AS (
    SELECT i.*, s.task_id
    FROM unnest(:tenant_id::integer[], :run_id::uuid[], :step::text[], :item::integer[], :state::text[], :result::bytea[], :error::jsonb[])
        AS i (tenant_id, run_id, step, item, state, result, error)
    JOIN workflow_steps s ON s.tenant_id = i.tenant_id AND s.run_id = i.run_id AND s.step = i.step
        AND s.item = i.item
    WHERE s.state IN ('blocked', 'released', 'expanded')
), held AS MATERIALIZED (
    -- In the order in which all others lock tasks: what waits may be claimed at this moment.
    SELECT i.* FROM input i JOIN tasks t ON t.tenant_id = i.tenant_id AND t.id = i.task_id
    WHERE t.state <> 'running' ORDER BY t.tenant_id, t.id FOR UPDATE OF t
), ended AS (
    DELETE FROM tasks t USING held i
    WHERE t.tenant_id = i.tenant_id AND t.id = i.task_id
    RETURNING t.*, i.item, i.run_id, i.step AS plain_step, i.state AS final_state, i.result,
        i.error AS final_error, clock_timestamp() AS now
), history AS (
    INSERT INTO task_history (id, created_at, run_at, due_at, expires_at, finished_at,
        tenant_id, rev, fence, attempts, failures, concurrency_limit, priority, state, queue,
        capability, concurrency_key, name, labels, error, spec, payload, result, replay_of,
        schedule_id, nominal_at, workflow_run_id, step, started_at, sla_met, blame, lateness)
    SELECT id, created_at, run_at, due_at, expires_at, now,
        tenant_id, rev + 1, fence, attempts, failures, concurrency_limit, priority, final_state, queue,
        capability, concurrency_key, name, labels, coalesce(final_error, error), spec, payload, result,
        replay_of, schedule_id, nominal_at, workflow_run_id, step, j.*
    FROM ended CROSS JOIN LATERAL judge_end(final_state, state, earlier, waited, due_at,
        paused_at, spec, now) AS j
), woken AS (
    INSERT INTO wakes (partition, tenant_id, task_id)
    SELECT partition, tenant_id, id FROM ended WHERE state = 'scheduled'
)
SELECT run_id, plain_step, item, partition, state FROM ended;

-- name: ask_to_cancel
-- Running tasks of steps are asked to stop.
WITH asked AS (
    UPDATE tasks t SET cancel_requested = true, rev = t.rev + 1
    FROM unnest(:tenant_ids::integer[], :ids::uuid[]) AS i (tenant_id, id)
    WHERE t.tenant_id = i.tenant_id AND t.id = i.id AND t.state = 'running' AND NOT t.cancel_requested
    RETURNING t.partition, t.tenant_id, t.id
)
INSERT INTO wakes (partition, tenant_id, task_id) SELECT * FROM asked RETURNING partition;

-- name: results
-- What templates and conditions may speak of: how some steps of a run ended.
SELECT step, state, result, error FROM workflow_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step = ANY (:steps::text[]) AND item = -1;

-- name: item_results
SELECT item, state, result FROM workflow_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step = :step AND item >= 0 ORDER BY item;

-- name: unfinished_steps
-- What of a run is not over.
SELECT step, item, state, needed, finished, succeeded, failed, task_id FROM workflow_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND state IN ('blocked', 'released', 'expanded')
ORDER BY step, item;

-- name: run_input
SELECT input FROM workflow_runs WHERE tenant_id = :tenant_id AND id = :run_id;

-- name: count_states
SELECT state, count(*) AS steps FROM workflow_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND item = -1 GROUP BY state;

-- name: stop_run
UPDATE workflow_runs SET stopping = :why, rev = rev + 1 WHERE tenant_id = :tenant_id AND id = :run_id;

-- name: end_runs
-- Runs whose last step has ended.
UPDATE workflow_runs r
SET state = i.state, finished_at = clock_timestamp(), rev = r.rev + 1
FROM unnest(:tenant_id::integer[], :id::uuid[], :states::text[]) AS i (tenant_id, id, state)
WHERE r.tenant_id = i.tenant_id AND r.id = i.id AND r.unfinished = 0 AND r.finished_at IS NULL
RETURNING r.id;

-- name: definition_of
-- The version that a run was made by, archived or not.
SELECT definition FROM workflow_versions WHERE tenant_id = :tenant_id AND name = :workflow AND version = :version;

-- name: lost_steps
-- Of these executions of steps, those that end by being lost: asked to cancel, or poison by the rules of
-- `outcomes.expire_leases` (:count_crash: those that a worker got, :presumed: those that are taken to have begun).
SELECT t.tenant_id, t.id, t.fence, t.partition, t.attempts, t.failures,
    extract(epoch FROM t.due_at)::float8 AS due, extract(epoch FROM t.picked_at)::float8 AS picked,
    extract(epoch FROM t.lease_until)::float8 AS lease_end, t.spec, t.payload,
    extract(epoch FROM t.run_at)::float8 AS run, t.workflow_run_id, t.step, t.waited, t.earlier,
    t.cancel_requested
FROM tasks t JOIN unnest(:tenant_ids::integer[], :ids::uuid[], :fences::integer[]) AS held (tenant_id, id, fence)
    ON t.tenant_id = held.tenant_id AND t.id = held.id AND t.fence = held.fence
WHERE t.state = 'running' AND t.workflow_run_id IS NOT NULL
  AND (t.lease_until <= clock_timestamp()
       OR t.incarnation IS NOT NULL AND EXISTS (
           SELECT FROM workers w WHERE w.tenant_id = t.tenant_id AND w.name = t.worker
             AND w.incarnation <> t.incarnation))
  AND (t.cancel_requested
       OR t.incarnation IS NOT NULL AND t.id = ANY (:count_crash::uuid[]) AND t.capability LIKE '%;alone'
          AND (t.began AND t.began_alone OR t.id = ANY (:presumed::uuid[]))
          AND t.losses >= 1 AND t.losses + t.unproven_losses >= 2);

-- name: overdue_steps
-- Steps in the partitions of a node that were not started by their expiry.
SELECT tenant_id, id, workflow_run_id, step FROM tasks
WHERE expires_at <= clock_timestamp() AND state <> 'running' AND workflow_run_id IS NOT NULL
  AND partition = ANY (:partitions::smallint[])
LIMIT 1000;

-- name: head
-- A run that the caller holds.
SELECT tenant_id, id, workflow, version, state, stopping, unfinished, failed FROM workflow_runs
WHERE tenant_id = :tenant_id AND id = :run_id;

-- name: overdue_runs
-- Runs in the partitions of a node whose deadline has passed.
SELECT tenant_id, id FROM workflow_runs
WHERE deadline_at <= clock_timestamp() AND finished_at IS NULL
  AND stopping IS DISTINCT FROM 'deadline' AND stopping IS DISTINCT FROM 'cancel'
  AND partition = ANY (:partitions::smallint[])
ORDER BY deadline_at LIMIT 100;

-- name: pause_run
UPDATE workflow_runs SET state = 'paused', rev = rev + 1
WHERE tenant_id = :tenant_id AND id = :run_id AND state = 'running';

-- name: unpause_run
UPDATE workflow_runs SET state = 'running', rev = rev + 1
WHERE tenant_id = :tenant_id AND id = :run_id AND state = 'paused';

-- name: pause_tasks
-- What was released and waits for its turn is held back; what runs goes on.
WITH held AS (
    UPDATE tasks t SET state = 'paused', parked = true, rev = t.rev + 1, paused_at = clock_timestamp()
    FROM workflow_steps s
    WHERE s.tenant_id = :tenant_id AND s.run_id = :run_id AND s.state = 'released' AND t.tenant_id = :tenant_id
      AND t.id = s.task_id AND t.state = 'scheduled'
    RETURNING t.partition, t.tenant_id, t.id
)
INSERT INTO wakes (partition, tenant_id, task_id) SELECT * FROM held RETURNING partition;

-- name: unpause_tasks
WITH held AS (
    UPDATE tasks t SET state = 'scheduled', parked = false, rev = t.rev + 1, paused_at = NULL,
        waited = waited_so_far(t.state, t.waited, t.due_at, t.paused_at, clock_timestamp())
    FROM workflow_steps s
    WHERE s.tenant_id = :tenant_id AND s.run_id = :run_id AND s.state = 'released' AND t.tenant_id = :tenant_id
      AND t.id = s.task_id AND t.state = 'paused'
    RETURNING t.partition, t.tenant_id, t.id
)
INSERT INTO wakes (partition, tenant_id, task_id) SELECT * FROM held RETURNING partition;

-- name: finish_fast
-- Ends of steps in runs where that leaves nothing to decide: nothing has failed or was cancelled,
-- and whatever waits for these steps starts when all before it have succeeded. What `hold_runs`,
-- `finish`, `advance`, `release` and `end_runs` do one by one is done at once. Runs of which a step is
-- not so are left alone and come back as intricate; runs that somebody changed while this waited for
-- them (the rest of the statement sees them as they were before) are left alone, too.
-- Of the released steps that the node itself can run so many as :most are leased to it at once (:lease,
-- :worker), like tasks by `claim`, unless their tenant has a limit.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats AND is_this_server(server_started)
    FOR KEY SHARE
), report AS MATERIALIZED (
    SELECT * FROM unnest(:tenant_id::integer[], :id::uuid[], :fence::integer[], :state::text[], :outcome::text[],
        :started::float8[], :finished::float8[], :result::bytea[], :error::jsonb[], :dead_because::text[], :sla_met::boolean[],
        :blame::text[], :lateness::jsonb[], :status_code::integer[], :response::bytea[], :own_lateness::jsonb[], :run_ids::uuid[],
        :steps::text[])
    AS r (tenant_id, id, fence, state, outcome, started, finished, result, error, dead_because,
          sla_met, blame, lateness, status_code, response, own_lateness, run_id, step)
), tenant AS MATERIALIZED (
    SELECT id, spread, max_running FROM tenants
    WHERE id IN (SELECT DISTINCT unnest(:tenant_id::integer[])) FOR KEY SHARE
), runs AS MATERIALIZED (
    SELECT tenant_id, id, rev, state, failed FROM workflow_runs
    WHERE (tenant_id, id) IN (SELECT tenant_id, run_id FROM report)
    ORDER BY tenant_id, id FOR NO KEY UPDATE
), known AS MATERIALIZED (
    SELECT w.tenant_id, w.id AS run_id,
        bool_and(coalesce(s.plain, false) AND coalesce(c.finished = c.succeeded, true)) AS plain
    FROM runs w
    JOIN tenant n ON n.id = w.tenant_id
    JOIN workflow_runs seen ON seen.tenant_id = w.tenant_id AND seen.id = w.id AND seen.rev = w.rev
    JOIN report r ON r.tenant_id = w.tenant_id AND r.run_id = w.id
    LEFT JOIN workflow_steps s ON s.tenant_id = r.tenant_id AND s.run_id = r.run_id AND s.step = r.step
        AND s.item = -1
    LEFT JOIN LATERAL unnest(s.children) AS child ON true
    -- Where something before a step was left out, it must not wait for all of them to succeed.
    LEFT JOIN workflow_steps c ON c.tenant_id = s.tenant_id AND c.run_id = s.run_id AND c.step = child
        AND c.item = -1
    WHERE w.state = 'running' AND w.failed = 0
    GROUP BY w.tenant_id, w.id
), plain AS MATERIALIZED (
    SELECT tenant_id, run_id FROM known WHERE plain
), done AS (
    DELETE FROM tasks t USING report r JOIN plain p ON p.tenant_id = r.tenant_id AND p.run_id = r.run_id
    WHERE t.tenant_id = r.tenant_id AND t.id = r.id AND t.fence = r.fence AND t.state = 'running'
    RETURNING t.*, r.outcome, to_timestamp(r.started) AS started_at,
        to_timestamp(r.finished) AS finished_at, r.result, r.sla_met, r.blame, r.lateness,
        r.own_lateness, r.status_code, r.response
), history AS (
    INSERT INTO task_history (id, created_at, run_at, due_at, expires_at, picked_at, started_at,
        finished_at, tenant_id, rev, fence, attempts, failures, concurrency_limit, priority, sla_met,
        state, queue, capability, concurrency_key, name, blame, labels, lateness, spec, payload,
        result, replay_of, schedule_id, nominal_at, workflow_run_id, step)
    SELECT id, created_at, run_at, due_at, expires_at, picked_at, started_at,
        finished_at, tenant_id, rev + 1, fence, attempts, failures, concurrency_limit, priority, sla_met,
        'completed', queue, capability, concurrency_key, name, blame, labels, lateness, spec, payload,
        result, replay_of, schedule_id, nominal_at, workflow_run_id, step
    FROM done
), recorded AS (
    INSERT INTO executions (task_id, due_at, picked_at, started_at, finished_at, tenant_id, fence,
        attempt, outcome, worker, status_code, response, lateness)
    SELECT id, due_at, picked_at, started_at, finished_at, tenant_id, fence, attempts, outcome, worker,
        status_code, response, own_lateness
    FROM done
), own AS (
    UPDATE workflow_steps s
    SET state = 'completed', started_at = d.started_at, finished_at = d.finished_at,
        attempts = d.attempts, result = d.result, error = NULL, waived = false
    FROM done d
    WHERE s.tenant_id = d.tenant_id AND s.run_id = d.workflow_run_id AND s.step = d.step
      AND s.item = -1 AND s.state = 'released'
    RETURNING s.tenant_id, s.run_id, s.children, s.finished_at
), fed AS (
    SELECT tenant_id, run_id, child, count(*) AS ended, max(finished_at) AS since
    FROM own, unnest(children) AS child GROUP BY tenant_id, run_id, child
), waiting AS (
    UPDATE workflow_steps s
    SET finished = s.finished + f.ended, succeeded = s.succeeded + f.ended,
        state = CASE WHEN s.succeeded + f.ended = s.needed THEN 'released' ELSE s.state END,
        due_at = CASE WHEN s.succeeded + f.ended = s.needed THEN f.since ELSE s.due_at END
    FROM fed f
    WHERE s.tenant_id = f.tenant_id AND s.run_id = f.run_id AND s.step = f.child AND s.item = -1
      AND s.state = 'blocked'
    RETURNING s.tenant_id, s.run_id, s.task_id, s.state, s.due_at, s.inside
), ready AS (
    SELECT w.*, n.spread,
        w.inside AND n.max_running IS NULL AND w.due_at <= clock_timestamp()
        AND EXISTS (SELECT FROM node)
        AND partition_of(w.tenant_id, w.run_id, NULL, n.spread) = ANY (:partitions::smallint[]) AS may_start
    FROM waiting w JOIN tenant n ON n.id = w.tenant_id
    WHERE w.state = 'released'
), turns AS (
    SELECT *, may_start AND row_number() OVER (PARTITION BY may_start ORDER BY task_id) <= :most AS starts
    FROM ready
), begun AS (
    UPDATE tasks t
    SET state = CASE WHEN w.starts THEN 'running' ELSE 'scheduled' END, parked = false,
        rev = t.rev + 1, run_at = w.due_at, due_at = w.due_at,
        fence = CASE WHEN w.starts
            THEN greatest(t.fence + 1, CASE WHEN t.created_at < f.before THEN f.floor END)
            ELSE t.fence END,
        attempts = t.attempts + w.starts::integer,
        picked_at = CASE WHEN w.starts THEN clock_timestamp() END,
        lease_until = CASE WHEN w.starts THEN clock_timestamp() + :lease * interval '1 second' END,
        worker = CASE WHEN w.starts THEN :worker END,
        partition = partition_of(t.tenant_id, w.run_id, t.concurrency_key, w.spread)
    FROM turns w, fence_floor f
    WHERE t.tenant_id = w.tenant_id AND t.id = w.task_id AND t.state = 'blocked'
    RETURNING t.*
), counted AS (
    SELECT tenant_id, run_id, count(*) AS ended FROM own GROUP BY tenant_id, run_id
), moved AS (
    UPDATE workflow_runs r
    SET unfinished = r.unfinished - c.ended, rev = r.rev + 1,
        state = CASE WHEN r.unfinished = c.ended THEN 'completed' ELSE r.state END,
        finished_at = CASE WHEN r.unfinished = c.ended THEN clock_timestamp() END
    FROM counted c
    WHERE r.tenant_id = c.tenant_id AND r.id = c.run_id
    RETURNING r.tenant_id, r.id, r.finished_at
), woken AS (
    INSERT INTO wakes (partition, tenant_id, task_id)
    SELECT partition, tenant_id, id
    FROM (SELECT partition, tenant_id, id FROM done UNION ALL
          SELECT partition, tenant_id, id FROM begun WHERE state = 'scheduled') told
    WHERE partition <> ALL (:partitions::smallint[]) OR NOT EXISTS (SELECT FROM node)
)
SELECT 'ended' AS what, tenant_id, id, NULL::integer AS rev, NULL::smallint AS partition,
    NULL AS state, NULL AS queue, NULL AS capability, NULL AS concurrency_key,
    NULL::integer AS concurrency_limit, NULL::smallint AS priority, NULL::float8 AS due,
    NULL::float8 AS expires, NULL::integer AS fence, NULL::float8 AS lease_end,
    NULL::boolean AS cancel_requested, NULL::integer AS attempts, NULL::integer AS failures,
    NULL::float8 AS picked, NULL::bytea AS spec, NULL::bytea AS payload, NULL::float8 AS run,
    NULL::uuid AS workflow_run_id, NULL AS step
FROM done
UNION ALL
SELECT 'released', tenant_id, id, rev, partition, state, queue, capability, concurrency_key,
    concurrency_limit, priority, extract(epoch FROM due_at)::float8,
    extract(epoch FROM expires_at)::float8, fence, extract(epoch FROM lease_until)::float8,
    cancel_requested, attempts, failures, extract(epoch FROM picked_at)::float8,
    CASE WHEN state = 'running' THEN spec END, CASE WHEN state = 'running' THEN payload END,
    extract(epoch FROM run_at)::float8, workflow_run_id, step
FROM begun
UNION ALL
SELECT 'run', tenant_id, id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM moved WHERE finished_at IS NOT NULL
UNION ALL
SELECT 'intricate', tenant_id, run_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM known WHERE NOT plain;
