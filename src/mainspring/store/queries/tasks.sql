-- What the API asks of the store. Every statement names the tenant.

-- name: {matching}
(:state::text IS NULL OR state = :state)
    AND (:queue::text IS NULL OR queue = :queue)
    AND (:name::text IS NULL OR name = :name)
    AND (:labels::jsonb IS NULL OR labels @> :labels)
    AND (:due_after::timestamptz IS NULL OR due_at >= :due_after)
    AND (:due_before::timestamptz IS NULL OR due_at < :due_before)
    AND (:schedule_id::uuid IS NULL OR schedule_id = :schedule_id)
    AND (:workflow_run_id::uuid IS NULL OR workflow_run_id = :workflow_run_id)

-- name: create_tasks
-- Insert tasks. A near one gets a wake row unless this very node owns its partition: then the node
-- tells its engine itself after the commit. With an idempotency key only the first caller inserts.
-- What may start at once (:at_once) is leased in the same breath, if it is due and nothing stands against
-- it: it was created (rev 1) and claimed (rev 2).
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats AND is_this_server(server_started)
    FOR KEY SHARE
), tenant AS MATERIALIZED (
    -- A change of a tenant's spread waits for this, so that no task lands in an old partition.
    SELECT id, spread, max_running FROM tenants
    WHERE id IN (SELECT DISTINCT unnest(:tenant_id::integer[])) FOR KEY SHARE
), input AS (
    SELECT * FROM unnest(:tenant_id::integer[], :id::uuid[], :created::float8[], :run::float8[], :due::float8[],
        :expires::float8[], :concurrency_limit::integer[], :priority::smallint[], :queue::text[], :capability::text[], :concurrency_key::text[],
        :name::text[], :labels::jsonb[], :spec::bytea[], :payload::bytea[], :task_keys::text[], :replay_of::uuid[],
        :schedule_id::uuid[], :nominal::float8[], :at_once::boolean[])
    AS i (tenant_id, id, created, run, due, expires, concurrency_limit, priority, queue, capability,
          concurrency_key, name, labels, spec, payload, idempotency_key, replay_of,
          schedule_id, nominal, at_once)
), keyed AS (
    INSERT INTO idempotency_keys (tenant_id, key, body_hash, status, answer, expires_at)
    SELECT k.tenant_id, k.key, k.body_hash, 201, k.answer, clock_timestamp() + k.ttl * interval '1 second'
    FROM unnest(:key_tenant_ids::integer[], :key::text[], :body_hash::bytea[], :answer::bytea[], :ttl::float8[])
        AS k (tenant_id, key, body_hash, answer, ttl)
    JOIN tenant t ON t.id = k.tenant_id
    ON CONFLICT (tenant_id, key) DO UPDATE
        SET body_hash = excluded.body_hash, answer = excluded.answer, status = excluded.status,
            headers = excluded.headers, expires_at = excluded.expires_at
        WHERE idempotency_keys.expires_at <= clock_timestamp()
    RETURNING tenant_id, key
), made AS (
    INSERT INTO tasks (id, created_at, run_at, due_at, expires_at, tenant_id, concurrency_limit,
        partition, priority, queue, capability, concurrency_key, name, labels, spec, payload,
        replay_of, schedule_id, nominal_at, state, rev, fence, attempts, picked_at, lease_until, worker)
    SELECT i.id, to_timestamp(i.created), to_timestamp(i.run), to_timestamp(i.due),
        to_timestamp(i.expires), i.tenant_id, i.concurrency_limit,
        partition_of(i.tenant_id, coalesce(i.schedule_id, i.id), i.concurrency_key, t.spread),
        i.priority, i.queue, i.capability, i.concurrency_key, i.name, i.labels, i.spec, i.payload,
        i.replay_of, i.schedule_id, to_timestamp(i.nominal),
        CASE WHEN n.id IS NULL THEN 'scheduled' ELSE 'running' END,
        1 + (n.id IS NOT NULL)::integer, (n.id IS NOT NULL)::integer, (n.id IS NOT NULL)::integer,
        CASE WHEN n.id IS NOT NULL THEN clock_timestamp() END,
        CASE WHEN n.id IS NOT NULL THEN clock_timestamp() + :lease * interval '1 second' END,
        CASE WHEN n.id IS NOT NULL THEN :worker END
    FROM input i JOIN tenant t ON t.id = i.tenant_id
    LEFT JOIN node n ON i.at_once AND to_timestamp(i.due) <= clock_timestamp()
        AND t.max_running IS NULL AND i.concurrency_key IS NULL AND i.expires IS NULL
        AND partition_of(i.tenant_id, coalesce(i.schedule_id, i.id), NULL, t.spread)
            = ANY (:partitions::smallint[])
    WHERE i.idempotency_key IS NULL
       OR EXISTS (SELECT FROM keyed k WHERE k.tenant_id = i.tenant_id AND k.key = i.idempotency_key)
    RETURNING tenant_id, id, partition, due_at, picked_at, lease_until
), woken AS (
    INSERT INTO wakes (partition, tenant_id, task_id)
    SELECT partition, tenant_id, id FROM made
    WHERE due_at <= clock_timestamp() + :near * interval '1 second'
      AND (partition <> ALL (:partitions::smallint[]) OR NOT EXISTS (SELECT FROM node))
)
SELECT id, partition, extract(epoch FROM picked_at)::float8 AS picked,
    extract(epoch FROM lease_until)::float8 AS lease_end
FROM made;

-- name: which_exist
-- After an insert whose answer was lost: did it take effect?
SELECT id, partition FROM tasks WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[])
UNION ALL
SELECT id, NULL FROM task_history
WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[]) AND finished_at >= time_of(:first);

-- name: get_task
-- One task, unfinished or finished.
SELECT * FROM (
    SELECT id, created_at, run_at, due_at, expires_at, picked_at, picked_at AS started_at,
        NULL::timestamptz AS finished_at, rev, fence, attempts, concurrency_limit, priority,
        cancel_requested, NULL::boolean AS sla_met, state, queue, concurrency_key, name,
        NULL::text AS blame, labels, error, NULL::jsonb AS lateness, spec, payload,
        NULL::bytea AS result, replay_of, schedule_id, nominal_at, workflow_run_id, step, progress
    FROM tasks WHERE tenant_id = :tenant_id AND id = :task_id
    UNION ALL
    SELECT id, created_at, run_at, due_at, expires_at, picked_at, started_at,
        finished_at, rev, fence, attempts, concurrency_limit, priority,
        false, sla_met, state, queue, concurrency_key, name,
        blame, labels, error, lateness, spec, payload,
        result, replay_of, schedule_id, nominal_at, workflow_run_id, step, NULL
    FROM task_history WHERE tenant_id = :tenant_id AND id = :task_id AND finished_at >= time_of(:task_id)
) found LIMIT 1;

-- name: lock_task
-- One unfinished task, held until the transaction ends: for changes that depend on its state.
SELECT id, created_at, run_at, due_at, expires_at, rev, fence, attempts, concurrency_limit,
    partition, priority, cancel_requested, state, queue, capability, concurrency_key, name, labels,
    spec, payload, workflow_run_id, step,
    state = 'blocked' AND EXISTS (
        SELECT FROM workflow_steps s WHERE s.tenant_id = t.tenant_id AND s.run_id = t.workflow_run_id
          AND s.step = t.step AND s.item = -1 AND s.state = 'expanded') AS expanded
FROM tasks t WHERE tenant_id = :tenant_id AND id = :task_id FOR UPDATE;

-- name: see_task
-- The same, as it stands and held by nobody: for telling what is wrong with a change of it.
SELECT id, created_at, run_at, due_at, expires_at, rev, fence, attempts, concurrency_limit,
    partition, priority, cancel_requested, state, queue, capability, concurrency_key, name, labels,
    spec, payload, workflow_run_id, step
FROM tasks WHERE tenant_id = :tenant_id AND id = :task_id;

-- name: running_task
-- The current execution of a running task, as its claim returned it.
SELECT tenant_id, id, fence, partition, attempts, failures,
    extract(epoch FROM due_at)::float8 AS due, extract(epoch FROM picked_at)::float8 AS picked,
    extract(epoch FROM lease_until)::float8 AS lease_end, spec, payload,
    extract(epoch FROM run_at)::float8 AS run, workflow_run_id, step, waited, earlier
FROM tasks WHERE tenant_id = :tenant_id AND id = :task_id AND state = 'running';

-- name: change_task
-- Write a locked task back. The rev says what the change was decided on.
UPDATE tasks
SET rev = rev + 1, state = :state, parked = (:state IN ('blocked', 'paused')), cancel_requested = :cancel_requested,
    run_at = to_timestamp(:run), due_at = to_timestamp(:due), expires_at = to_timestamp(:expires), priority = :priority,
    queue = :queue, capability = :capability, name = :name, labels = :labels, spec = :spec, payload = :payload,
    paused_at = CASE WHEN :state = 'paused' THEN coalesce(paused_at, clock_timestamp()) END,
    -- A task that is due at another time than before is not late yet.
    waited = CASE WHEN due_at <> to_timestamp(:due) THEN NULL WHEN :state = 'paused' THEN waited
             ELSE waited_so_far(state, waited, due_at, paused_at, clock_timestamp()) END
WHERE tenant_id = :tenant_id AND id = :task_id AND rev = :rev
RETURNING rev;

-- name: end_task
-- Move a locked task that is not running to history. The rev says what that was decided on.
WITH ended AS (
    DELETE FROM tasks
    WHERE tenant_id = :tenant_id AND id = :task_id AND rev = :rev
    RETURNING *, clock_timestamp() AS now
)
INSERT INTO task_history (id, created_at, run_at, due_at, expires_at, finished_at,
    tenant_id, rev, fence, attempts, failures, concurrency_limit, priority, state, queue,
    capability, concurrency_key, name, labels, error, spec, payload, replay_of, schedule_id,
    nominal_at, workflow_run_id, step, started_at, sla_met, blame, lateness)
SELECT id, created_at, run_at, due_at, expires_at, now,
    tenant_id, rev + 1, fence, attempts, failures, concurrency_limit, priority, :state, queue,
    capability, concurrency_key, name, labels, error, spec, payload, replay_of, schedule_id,
    nominal_at, workflow_run_id, step, j.*
FROM ended CROSS JOIN LATERAL judge_end(:state, state, earlier, waited, due_at, paused_at, spec, now) AS j
RETURNING id;

-- name: wake
INSERT INTO wakes (partition, tenant_id, task_id) VALUES (:partition, :tenant_id, :task_id);

-- name: purge_task
DELETE FROM tasks WHERE tenant_id = :tenant_id AND id = :task_id RETURNING rev, partition, workflow_run_id, step;

-- name: purge_history
DELETE FROM task_history WHERE tenant_id = :tenant_id AND id = :task_id AND finished_at >= time_of(:task_id) RETURNING rev;

-- name: purge_executions
DELETE FROM executions WHERE tenant_id = :tenant_id AND task_id = :task_id AND finished_at >= time_of(:task_id);

-- name: purge_logs
DELETE FROM task_logs WHERE tenant_id = :tenant_id AND task_id = :task_id;

-- name: purge_dead_letter
DELETE FROM dead_letters WHERE tenant_id = :tenant_id AND id = :task_id;

-- name: list_executions
-- Of a task that was tried once its history says how late that was.
SELECT attempt, fence, worker, due_at, picked_at, started_at, finished_at, outcome, status_code,
    response, error,
    greatest(0, extract(epoch FROM finished_at - coalesce(started_at, picked_at))::float8 * 1000) AS duration_ms,
    coalesce(lateness, (
        SELECT h.lateness FROM task_history h
        WHERE h.tenant_id = :tenant_id AND h.id = :task_id AND h.finished_at >= time_of(:task_id) AND h.fence = e.fence
    )) AS lateness
FROM executions e
WHERE tenant_id = :tenant_id AND task_id = :task_id AND finished_at >= time_of(:task_id)
  AND (:outcome::text IS NULL OR outcome = :outcome)
ORDER BY fence LIMIT 1000;

-- name: list_tasks
-- A page, newest first, over unfinished (:unfinished) and finished (:finished) tasks. At most `:scan` rows are
-- looked at, so that a filter which nothing matches stays cheap; `edge` says how far, where there may
-- be more. What is in braces is filled in by store/lists/index_paths.py: which rows are looked at, by which
-- index. They are looked at with few columns; those that match are read whole, in the same snapshot.
WITH scanned AS MATERIALIZED (
    SELECT id, finished_at,
        {matching} AS matches
    FROM (
        (SELECT id, NULL::timestamptz AS finished_at, state, queue, name, labels, due_at,
            schedule_id, workflow_run_id
        FROM tasks WHERE :unfinished AND {unfinished})
        UNION ALL
        (SELECT id, finished_at, state, queue, name, labels, due_at, schedule_id, workflow_run_id
        FROM task_history WHERE :finished AND {finished})
    ) every ORDER BY id DESC LIMIT :scan
), page AS MATERIALIZED (
    SELECT id, finished_at FROM scanned WHERE matches ORDER BY id DESC LIMIT :limit
), shown AS (
    SELECT t.id, created_at, run_at, due_at, expires_at, picked_at, picked_at AS started_at,
        NULL::timestamptz AS finished_at, rev, fence, attempts, concurrency_limit, priority,
        cancel_requested, NULL::boolean AS sla_met, state, queue, concurrency_key, name,
        NULL::text AS blame, labels, error, NULL::jsonb AS lateness, spec,
        CASE WHEN :payloads::boolean THEN payload ELSE ''::bytea END AS payload,
        NULL::bytea AS result, replay_of, schedule_id, nominal_at, workflow_run_id, step
    FROM page JOIN tasks t ON t.tenant_id = :tenant_id AND t.id = page.id
    WHERE page.finished_at IS NULL
    UNION ALL
    SELECT t.id, created_at, run_at, due_at, expires_at, picked_at, started_at,
        t.finished_at, rev, fence, attempts, concurrency_limit, priority,
        false, sla_met, state, queue, concurrency_key, name,
        blame, labels, error, lateness, spec,
        CASE WHEN :payloads::boolean THEN payload ELSE ''::bytea END AS payload,
        result, replay_of, schedule_id, nominal_at, workflow_run_id, step
    FROM page JOIN task_history t
        ON t.tenant_id = :tenant_id AND t.id = page.id AND t.finished_at = page.finished_at
), edge AS (
    SELECT (SELECT id FROM scanned ORDER BY id DESC OFFSET :scan - 1 LIMIT 1) AS edge
)
SELECT shown.*, edge.edge FROM edge LEFT JOIN shown ON true ORDER BY shown.id DESC;

-- name: ready_indexes
-- Indexes of history that every partition has; on large tables they are built one by one.
SELECT c.relname AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = 'task_history'::regclass AND i.indisvalid;

-- name: newest_task
-- Many tasks are cancelled in chunks: found without locks, then locked in id order and looked at again.
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
      AND {matching}
    ORDER BY id LIMIT :limit
), edge AS (
    SELECT count(*) AS scanned, (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS edge FROM scanned
)
SELECT page.id, page.state, edge.scanned, edge.edge FROM edge LEFT JOIN page ON true ORDER BY page.id;

-- name: lock_cancellable
-- The same tasks as they are now, held until the transaction ends.
SELECT id, rev, state, workflow_run_id, step FROM tasks
WHERE tenant_id = :tenant_id AND id = ANY (:ids::uuid[]) AND NOT cancel_requested
  AND {matching}
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
