-- What the recorder writes. Every statement is one transaction, takes its rows in the order of the
-- arrays (sorted by tenant and id), and touches only the execution that the fence names. A wake row tells
-- the owner where that is not (or no longer) the node that records.

-- name: {scheduled_row}
tenant_id, id, rev, partition, state, queue, capability, concurrency_key, concurrency_limit,
    priority, extract(epoch FROM due_at)::float8 AS due, extract(epoch FROM expires_at)::float8 AS expires,
    fence, NULL::float8 AS lease_end, cancel_requested, worker, incarnation, waited

-- name: finish
-- The last execution of each task: out of the hot table, into history, with its execution; a task that
-- failed also becomes a dead letter. A step that was lost ends here, too: the execution is told of as by
-- `lose`.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats AND is_this_server(server_started)
    FOR KEY SHARE
), report AS (
    SELECT * FROM unnest(:tenant_id::integer[], :id::uuid[], :fence::integer[], :state::text[], :outcome::text[],
        :started::float8[], :finished::float8[], :result::bytea[], :error::jsonb[], :dead_because::text[], :sla_met::boolean[],
        :blame::text[], :lateness::jsonb[], :status_code::integer[], :response::bytea[], :own_lateness::jsonb[])
    AS r (tenant_id, id, fence, state, outcome, started, finished, result, error, dead_because,
          sla_met, blame, lateness, status_code, response, own_lateness)
), done AS (
    DELETE FROM tasks t USING report r
    WHERE t.tenant_id = r.tenant_id AND t.id = r.id AND t.fence = r.fence AND t.state = 'running'
    RETURNING t.*, r.state AS final_state, r.outcome,
        -- Of an execution that was lost or released nobody knows that it started.
        CASE WHEN r.outcome NOT IN ('lost', 'released') THEN to_timestamp(r.started)
             ELSE to_timestamp((t.earlier ->> 'start')::float8) END AS started_at,
        to_timestamp(r.finished) AS finished_at, r.result, r.error AS final_error, r.dead_because,
        r.sla_met, r.blame, r.lateness, r.own_lateness,
        r.status_code, r.response,
        CASE WHEN r.outcome <> 'lost' THEN r.error ELSE jsonb_build_object('code', 'lost', 'message',
            CASE WHEN t.lease_until <= clock_timestamp()
            THEN 'nothing was heard of who ran it until its lease ended'
            ELSE 'its worker began anew' END) END AS try_error
), history AS (
    INSERT INTO task_history (id, created_at, run_at, due_at, expires_at, picked_at, started_at,
        finished_at, tenant_id, rev, fence, attempts, failures, concurrency_limit, priority, sla_met,
        state, queue, capability, concurrency_key, name, blame, labels, error, lateness, spec,
        payload, result, replay_of, schedule_id, nominal_at, workflow_run_id, step)
    SELECT id, created_at, run_at, due_at, expires_at, picked_at, started_at,
        finished_at, tenant_id, rev + 1, fence, attempts,
        failures + (outcome IN ('failed', 'timed_out'))::integer, concurrency_limit, priority, sla_met,
        final_state, queue, capability, concurrency_key, name, blame, labels, final_error, lateness,
        spec, payload, result, replay_of, schedule_id, nominal_at, workflow_run_id, step
    FROM done
), recorded AS (
    INSERT INTO executions (task_id, due_at, picked_at, started_at, finished_at, tenant_id, fence,
        attempt, outcome, worker, error, status_code, response, lateness)
    SELECT id, due_at, picked_at,
        CASE WHEN outcome NOT IN ('lost', 'released') THEN started_at END, finished_at,
        tenant_id, fence, attempts, outcome, worker, try_error, status_code, response, own_lateness
    FROM done
), dead AS (
    INSERT INTO dead_letters (id, tenant_id, died_at, reason, name, queue, priority,
        concurrency_key, concurrency_limit, labels, final_error, attempts, spec, payload,
        created_at, run_at, due_at, expires_at, picked_at, started_at, rev, fence, sla_met, blame,
        lateness, result, replay_of, schedule_id, nominal_at, workflow_run_id, step)
    SELECT id, tenant_id, finished_at, dead_because, name, queue, priority,
        concurrency_key, concurrency_limit, labels, final_error,
        coalesce((SELECT jsonb_agg(jsonb_build_object('attempt', e.attempt, 'outcome', e.outcome,
                      'error', e.error, 'finished_at', e.finished_at) ORDER BY e.fence)
                  FROM executions e WHERE e.tenant_id = d.tenant_id AND e.task_id = d.id
                    AND e.finished_at >= time_of(d.id)), '[]'::jsonb)
        || jsonb_build_object('attempt', d.attempts, 'outcome', d.outcome,
                      'error', d.try_error, 'finished_at', d.finished_at),
        spec, payload, created_at, run_at, due_at, expires_at, picked_at, started_at, rev + 1, fence,
        sla_met, blame, lateness, result, replay_of, schedule_id, nominal_at, workflow_run_id, step
    FROM done d WHERE dead_because IS NOT NULL
), woken AS (
    INSERT INTO wakes (partition, tenant_id, task_id)
    SELECT partition, tenant_id, id FROM done
    WHERE partition <> ALL (:partitions::smallint[]) OR NOT EXISTS (SELECT FROM node)
)
SELECT tenant_id, id FROM done;

-- name: retry
-- A failed execution with others left: back to scheduled, or paused, as its run is. Not if somebody asked to
-- cancel meanwhile.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats AND is_this_server(server_started)
    FOR KEY SHARE
), report AS (
    SELECT * FROM unnest(:tenant_id::integer[], :id::uuid[], :fence::integer[], :outcome::text[], :started::float8[],
        :finished::float8[], :error::jsonb[], :delays::float8[], :status_code::integer[], :response::bytea[], :run_ids::uuid[],
        :own_lateness::jsonb[], :earlier::jsonb[])
    AS r (tenant_id, id, fence, outcome, started, finished, error, delay, status_code, response, run_id,
          own_lateness, earlier)
), runs AS MATERIALIZED (
    -- Before their tasks, as everywhere. Who pauses one at this moment comes before us or after us.
    SELECT tenant_id, id, state FROM workflow_runs
    WHERE (tenant_id, id) IN (SELECT tenant_id, run_id FROM report WHERE run_id IS NOT NULL)
    ORDER BY tenant_id, id FOR SHARE
), tried AS MATERIALIZED (
    SELECT t.tenant_id, t.id, t.fence, t.due_at, t.picked_at, t.attempts, t.worker, r.outcome,
        r.started, r.finished, r.error, r.delay, r.status_code, r.response, r.own_lateness, r.earlier,
        coalesce(w.state = 'paused', false) AS paused
    FROM tasks t JOIN report r ON t.tenant_id = r.tenant_id AND t.id = r.id AND t.fence = r.fence
    LEFT JOIN runs w ON w.tenant_id = r.tenant_id AND w.id = r.run_id
    WHERE t.state = 'running' AND NOT t.cancel_requested
    FOR UPDATE OF t
), again AS (
    UPDATE tasks t
    SET state = CASE WHEN r.paused THEN 'paused' ELSE 'scheduled' END, parked = r.paused,
        rev = t.rev + 1, error = r.error, picked_at = NULL, lease_until = NULL,
        worker = NULL, incarnation = NULL, began = false, began_alone = false,
        failures = t.failures + (r.outcome IN ('failed', 'timed_out'))::integer,
        -- A worker that lived to report it was not killed by it.
        losses = CASE WHEN r.outcome IN ('failed', 'timed_out') THEN 0 ELSE t.losses END,
        unproven_losses = CASE WHEN r.outcome IN ('failed', 'timed_out') THEN 0 ELSE t.unproven_losses END,
        capability = CASE WHEN r.outcome IN ('failed', 'timed_out')
                     THEN regexp_replace(t.capability, ';alone$', '') ELSE t.capability END,
        due_at = CASE WHEN r.delay IS NULL THEN t.due_at
                 ELSE clock_timestamp() + r.delay * interval '1 second' END,
        earlier = r.earlier, paused_at = CASE WHEN r.paused THEN clock_timestamp() END,
        waited = CASE WHEN r.delay IS NULL
                 THEN until_lost(t.waited, t.due_at, t.picked_at, clock_timestamp()) END
    FROM tried r
    WHERE t.tenant_id = r.tenant_id AND t.id = r.id
    RETURNING t.*
), recorded AS (
    INSERT INTO executions (task_id, due_at, picked_at, started_at, finished_at, tenant_id, fence,
        attempt, outcome, worker, error, status_code, response, lateness)
    SELECT id, due_at, picked_at, CASE WHEN outcome <> 'released' THEN to_timestamp(started) END,
        to_timestamp(finished), tenant_id, fence, attempts, outcome, worker, error, status_code,
        response, own_lateness
    FROM tried
), woken AS (
    INSERT INTO wakes (partition, tenant_id, task_id)
    SELECT partition, tenant_id, id FROM again
    WHERE partition <> ALL (:partitions::smallint[]) OR NOT EXISTS (SELECT FROM node)
)
SELECT {scheduled_row} FROM again;

-- name: expire_leases
-- Leases that ended, or whose worker has restarted: nobody will report these executions any more. A
-- task that was asked to cancel ends as cancelled, any other is scheduled again (of a run that is
-- paused it is paused); due_at stays, so that its lateness shows. Where a worker got the task (:count_crash) losses are
-- counted, apart for executions that began and for those not known to have begun. That one began is the
-- word of its worker, or concluded for workers that do not tell (:presumed). After two losses the task is leased
-- alone. If it began alone and is lost, for the third time or more, of which it had begun at least twice,
-- it is what kills workers: a dead letter.
-- A step that would end here is left as it is: its end concerns its run (`steps.lost_steps`).
WITH runs AS MATERIALIZED (
    SELECT tenant_id, id, state FROM workflow_runs
    WHERE (tenant_id, id) IN (
        SELECT t.tenant_id, t.workflow_run_id FROM tasks t
        JOIN unnest(:tenant_ids::integer[], :ids::uuid[]) AS held (tenant_id, id)
            ON t.tenant_id = held.tenant_id AND t.id = held.id
        WHERE t.workflow_run_id IS NOT NULL)
    ORDER BY tenant_id, id FOR SHARE
), expired AS MATERIALIZED (
    SELECT t.tenant_id, t.id, t.fence, t.cancel_requested, proof.counted, proof.began,
        coalesce(w.state = 'paused', false) AS paused,
        judged.poison AND NOT t.cancel_requested AS poison,
        jsonb_build_object('code', 'lost', 'message', CASE WHEN t.lease_until <= clock_timestamp()
            THEN 'nothing was heard of who ran it until its lease ended'
            ELSE 'its worker began anew' END
            || CASE WHEN proof.began OR t.incarnation IS NULL THEN ''
               ELSE '; it is not known to have begun' END) AS loss
    FROM tasks t JOIN unnest(:tenant_ids::integer[], :ids::uuid[], :fences::integer[]) AS held (tenant_id, id, fence)
        ON t.tenant_id = held.tenant_id AND t.id = held.id AND t.fence = held.fence
    CROSS JOIN LATERAL (
        SELECT t.incarnation IS NOT NULL AND t.id = ANY (:count_crash::uuid[]) AS counted,
            t.began OR t.id = ANY (:presumed::uuid[]) AS began,
            t.began_alone OR t.id = ANY (:presumed::uuid[]) AS began_alone) AS proof
    CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT WHERE proof.counted AND proof.began AND proof.began_alone
            AND t.capability LIKE '%;alone'
            AND t.losses >= 1 AND t.losses + t.unproven_losses >= 2) AS poison) AS judged
    LEFT JOIN runs w ON w.tenant_id = t.tenant_id AND w.id = t.workflow_run_id
    WHERE t.state = 'running'
      AND (t.lease_until <= clock_timestamp()
           OR t.incarnation IS NOT NULL AND EXISTS (
               SELECT FROM workers w WHERE w.tenant_id = t.tenant_id AND w.name = t.worker
                 AND w.incarnation <> t.incarnation))
      AND NOT (t.workflow_run_id IS NOT NULL
               AND (t.cancel_requested OR judged.poison))
    FOR UPDATE OF t
), recorded AS (
    INSERT INTO executions (task_id, due_at, picked_at, finished_at, tenant_id, fence, attempt,
        outcome, worker, error, lateness)
    SELECT t.id, t.due_at, t.picked_at, clock_timestamp(), t.tenant_id, t.fence, t.attempts, 'lost',
        t.worker, e.loss, coalesce(until_picked(t.waited, t.due_at, t.picked_at), '{}')
    FROM tasks t JOIN expired e ON t.tenant_id = e.tenant_id AND t.id = e.id
), again AS (
    UPDATE tasks t
    SET state = CASE WHEN e.paused THEN 'paused' ELSE 'scheduled' END, parked = e.paused,
        rev = t.rev + 1, picked_at = NULL, lease_until = NULL, worker = NULL,
        incarnation = NULL, began = false, began_alone = false,
        losses = t.losses + (e.counted AND e.began)::integer,
        unproven_losses = t.unproven_losses + (e.counted AND NOT e.began)::integer,
        waited = until_lost(t.waited, t.due_at, t.picked_at, clock_timestamp()),
        paused_at = CASE WHEN e.paused THEN clock_timestamp() END,
        capability = CASE WHEN e.counted AND t.losses + t.unproven_losses >= 1
                          AND t.capability NOT LIKE '%;alone'
                     THEN t.capability || ';alone' ELSE t.capability END
    FROM expired e
    WHERE t.tenant_id = e.tenant_id AND t.id = e.id
      AND NOT e.cancel_requested AND NOT e.poison
    RETURNING t.*
), ended AS (
    DELETE FROM tasks t USING expired e
    WHERE t.tenant_id = e.tenant_id AND t.id = e.id
      AND (e.cancel_requested OR e.poison)
    RETURNING t.*, CASE WHEN e.poison THEN 'failed' ELSE 'cancelled' END AS final_state,
        CASE WHEN e.poison THEN jsonb_build_object('code', 'poison', 'message',
            'its worker died again and again while it ran, the last time with nothing else to do')
        ELSE t.error END AS final_error, e.loss
), judged AS (
    SELECT e.tenant_id, e.id, j.* FROM ended e CROSS JOIN LATERAL judge_end(e.final_state, e.state, e.earlier,
        until_lost(e.waited, e.due_at, e.picked_at, clock_timestamp()), e.due_at, NULL, e.spec,
        clock_timestamp()) AS j
), history AS (
    INSERT INTO task_history (id, created_at, run_at, due_at, expires_at, picked_at, finished_at,
        tenant_id, rev, fence, attempts, failures, concurrency_limit, priority, state, queue,
        capability, concurrency_key, name, labels, error, spec, payload, replay_of, schedule_id,
        nominal_at, started_at, sla_met, blame, lateness)
    SELECT id, created_at, run_at, due_at, expires_at, picked_at, clock_timestamp(),
        tenant_id, rev + 1, fence, attempts, failures, concurrency_limit, priority, final_state, queue,
        capability, concurrency_key, name, labels, final_error, spec, payload, replay_of, schedule_id,
        nominal_at, started_at, sla_met, blame, lateness
    FROM ended JOIN judged USING (tenant_id, id)
), dead AS (
    INSERT INTO dead_letters (id, tenant_id, died_at, reason, name, queue, priority,
        concurrency_key, concurrency_limit, labels, final_error, attempts, spec, payload,
        created_at, run_at, due_at, expires_at, picked_at, rev, fence, replay_of,
        schedule_id, nominal_at, started_at, sla_met, blame, lateness)
    SELECT id, tenant_id, clock_timestamp(), 'poison', name, queue, priority,
        concurrency_key, concurrency_limit, labels, final_error,
        coalesce((SELECT jsonb_agg(jsonb_build_object('attempt', e.attempt, 'outcome', e.outcome,
                      'error', e.error, 'finished_at', e.finished_at) ORDER BY e.fence)
                  FROM executions e WHERE e.tenant_id = d.tenant_id AND e.task_id = d.id
                    AND e.finished_at >= time_of(d.id)), '[]'::jsonb)
        || jsonb_build_object('attempt', d.attempts, 'outcome', 'lost', 'error', d.loss,
                      'finished_at', clock_timestamp()),
        spec, payload, created_at, run_at, due_at, expires_at, picked_at, rev + 1, fence, replay_of,
        schedule_id, nominal_at, started_at, sla_met, blame, lateness
    FROM ended d JOIN judged USING (tenant_id, id) WHERE final_state = 'failed'
)
SELECT {scheduled_row} FROM again
UNION ALL
SELECT tenant_id, id, NULL, partition, NULL, queue, capability, concurrency_key, concurrency_limit,
    priority, NULL, NULL, fence, NULL, cancel_requested, NULL, NULL, NULL
FROM ended;

-- name: expire
-- Some of the tasks that were not started by expires_at, in the partitions of this node. Steps of
-- workflows are left to `overdue_steps`. Who is about to change one may: it is looked at again.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats AND is_this_server(server_started)
    FOR KEY SHARE
), overdue AS MATERIALIZED (
    SELECT t.ctid FROM tasks t, node
    -- By the time at which the statement began: an index can answer that, and not what changes as we look.
    WHERE t.expires_at <= now() AND t.state <> 'running'
      AND t.partition = ANY (:partitions::smallint[]) AND t.workflow_run_id IS NULL
    ORDER BY t.expires_at LIMIT :limit
    FOR UPDATE OF t SKIP LOCKED
), ended AS (
    -- By their places, which nobody can change meanwhile. As a join it may be planned while the table is
    -- empty, and then compares each task with each.
    DELETE FROM tasks t WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM overdue))
    RETURNING t.*, clock_timestamp() AS now
), history AS (
    INSERT INTO task_history (id, created_at, run_at, due_at, expires_at, finished_at,
        tenant_id, rev, fence, attempts, failures, concurrency_limit, priority, state, queue,
        capability, concurrency_key, name, labels, error, spec, payload, replay_of, schedule_id,
        nominal_at, started_at, sla_met, blame, lateness)
    SELECT id, created_at, run_at, due_at, expires_at, now,
        tenant_id, rev + 1, fence, attempts, failures, concurrency_limit, priority, 'expired', queue,
        capability, concurrency_key, name, labels, error, spec, payload, replay_of, schedule_id,
        nominal_at, j.*
    FROM ended CROSS JOIN LATERAL judge_end('expired', state, earlier, waited, due_at,
        paused_at, spec, now) AS j
)
SELECT tenant_id, id FROM ended;

-- name: explain_ends
-- Tasks that ended while they waited, and what their owner saw them wait for.
UPDATE task_history h
SET lateness = put_down(h.lateness, t.waited),
    blame = CASE WHEN h.sla_met THEN h.blame WHEN NOT h.sla_met
            THEN phase_to_blame(put_down(h.lateness, t.waited)) END
FROM unnest(:tenant_id::integer[], :id::uuid[], :waited::jsonb[]) AS t (tenant_id, id, waited)
WHERE h.tenant_id = t.tenant_id AND h.id = t.id AND h.finished_at >= time_of(t.id)
  AND h.started_at IS NULL AND h.lateness ? 'unattributed';
