-- Schedules: what the API does with them, and what the owner of their partition decides.
-- Every statement names the tenant, or the partitions of a node with its epoch.

-- name: {schedule}
s.tenant_id, s.id, s.rev, s.edition, s.partition, s.state, s.name,
    s.definition AS definition_bytes, s.template AS template_bytes, s.created_at, s.updated_at,
    extract(epoch FROM s.decided_to)::float8 AS decided_to,
    extract(epoch FROM s.next_at)::float8 AS next, extract(epoch FROM s.last_at)::float8 AS last,
    s.runs, CASE WHEN s.calendars = '{}' THEN NULL ELSE holidays(s.tenant_id, s.calendars) END
        AS holidays,
    extract(epoch FROM clock_timestamp())::float8 AS now

-- name: create_schedule
-- Nothing comes back when the name is taken, or the tenant gone.
INSERT INTO schedules (tenant_id, id, name, state, partition, timezone, tzdata, calendars,
    definition, template, decided_to, next_at, wake_at)
SELECT t.id, :schedule_id, :name, CASE WHEN :next::float8 IS NULL THEN 'ended' ELSE 'active' END,
    partition_of(t.id, :schedule_id, NULL, 256), :timezone, :tzdata, :calendars, :definition, :template, to_timestamp(:decided_to), to_timestamp(:next),
    to_timestamp(:wake)
FROM tenants t WHERE t.id = :tenant_id FOR KEY SHARE
ON CONFLICT (tenant_id, name) DO NOTHING
RETURNING partition;

-- name: get_schedule
SELECT {schedule}
FROM schedules s WHERE s.tenant_id = :tenant_id AND s.id = :schedule_id;

-- name: list_schedules
SELECT {schedule}
FROM schedules s
WHERE s.tenant_id = :tenant_id AND s.id < :before
  AND (:state::text IS NULL OR s.state = :state) AND (:name::text IS NULL OR s.name = :name)
  AND (:overdue::float8 IS NULL OR (s.state = 'active' AND s.wake_at < now() - :overdue * interval '1 second'))
ORDER BY s.id DESC LIMIT :limit;

-- name: lock_schedule
-- Held until the transaction ends: a change is decided on what is here now.
SELECT {schedule}
FROM schedules s WHERE s.tenant_id = :tenant_id AND s.id = :schedule_id FOR UPDATE;

-- name: change_schedule
UPDATE schedules
SET rev = rev + 1, edition = edition + 1, updated_at = clock_timestamp(), state = :state, name = :name, timezone = :timezone,
    tzdata = :tzdata, calendars = :calendars, definition = :definition, template = :template, decided_to = to_timestamp(:decided_to),
    next_at = to_timestamp(:next), wake_at = to_timestamp(:wake)
WHERE tenant_id = :tenant_id AND id = :schedule_id AND rev = :rev
RETURNING rev;

-- name: delete_schedule
DELETE FROM schedules WHERE tenant_id = :tenant_id AND id = :schedule_id RETURNING partition;

-- name: list_occurrences
-- Newest first; at one nominal time the backfill before the decision that it replaces.
SELECT nominal_at, to_at, pass AS attempt, count, decision, reason, task_id, decided_at
FROM occurrences
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id AND (nominal_at, pass) < (to_timestamp(:before), :attempt)
  AND (:decision::text IS NULL OR decision = :decision)
ORDER BY nominal_at DESC, pass DESC LIMIT :limit;

-- name: ran_between
-- Nominal times in [from, to] that have a task already: a backfill leaves them out.
SELECT extract(epoch FROM nominal_at)::float8 AS nominal FROM occurrences
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id AND nominal_at BETWEEN to_timestamp(:first) AND to_timestamp(:last)
  AND task_id IS NOT NULL;

-- The owner's side -------------------------------------------------------------------------------

-- name: due_schedules
-- What has to be decided on until then, earliest first.
SELECT tenant_id, id, extract(epoch FROM wake_at)::float8 AS wake
FROM schedules
WHERE partition = ANY (:partitions::smallint[]) AND state = 'active' AND wake_at <= to_timestamp(:until)
ORDER BY wake_at LIMIT :limit;

-- name: lock_due
-- Those that are due by the database's clock, for the node that owns them. What somebody else is
-- changing at this moment is left for the next look.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats AND is_this_server(server_started)
    FOR KEY SHARE
)
SELECT {schedule}
FROM unnest(:tenant_id::integer[], :id::uuid[]) AS pick (tenant_id, id)
JOIN schedules s ON s.tenant_id = pick.tenant_id AND s.id = pick.id
CROSS JOIN node
WHERE s.state = 'active' AND s.partition = ANY (:partitions::smallint[]) AND s.wake_at <= clock_timestamp()
  AND EXISTS (SELECT FROM tenants t WHERE t.id = s.tenant_id)
ORDER BY s.tenant_id, s.id
FOR UPDATE OF s SKIP LOCKED;

-- name: count_unfinished
-- For the overlap policies: asked after the lock, so nothing that was decided before is missed.
SELECT t.schedule_id, count(*) AS unfinished FROM tasks t
WHERE t.schedule_id = ANY (:schedule_ids::uuid[])
  AND t.concurrency_key IS DISTINCT FROM 'backfill:' || t.schedule_id
GROUP BY t.schedule_id;

-- name: gone_targets
-- Of these schedules, those whose last task was told 410: the receiver is gone for good.
SELECT wanted.id FROM unnest(:tenant_ids::integer[], :ids::uuid[]) AS wanted (tenant_id, id)
CROSS JOIN LATERAL (
    SELECT o.task_id FROM occurrences o
    WHERE o.schedule_id = wanted.id AND o.task_id IS NOT NULL
    ORDER BY o.nominal_at DESC LIMIT 1
) latest
WHERE EXISTS (
    SELECT FROM executions e
    WHERE e.tenant_id = wanted.tenant_id AND e.task_id = latest.task_id AND e.status_code = 410
      AND e.finished_at >= time_of(latest.task_id));

-- name: record_decisions
-- The ledger's new lines.
INSERT INTO occurrences (schedule_id, tenant_id, nominal_at, to_at, count, decision, reason, task_id,
    pass)
SELECT o.schedule_id, o.tenant_id, to_timestamp(o.first), to_timestamp(o.last), o.count, o.decision,
    o.reason, o.task_id, (o.decision = 'backfilled')::integer
FROM unnest(:schedule_ids::uuid[], :tenant_ids::integer[], :first::float8[], :last::float8[], :size::bigint[], :decision::text[],
    :reason::text[], :task_ids::uuid[])
    AS o (schedule_id, tenant_id, first, last, count, decision, reason, task_id);

-- name: advance
-- Schedules move on, each from the revision that was decided on. While nodes of different versions
-- run side by side, the tz database is the one that this very time was computed with.
UPDATE schedules s
SET rev = s.rev + 1, decided_to = to_timestamp(a.decided_to), next_at = to_timestamp(a.next),
    wake_at = to_timestamp(a.wake), runs = s.runs + a.fired,
    last_at = coalesce(to_timestamp(a.last), s.last_at), tzdata = :tzdata,
    state = CASE WHEN a.next IS NULL THEN 'ended' ELSE s.state END
FROM unnest(:tenant_id::integer[], :id::uuid[], :rev::integer[], :decided_to::float8[], :next::float8[], :wake::float8[],
    :fired::integer[], :last::float8[])
    AS a (tenant_id, id, rev, decided_to, next, wake, fired, last)
WHERE s.tenant_id = a.tenant_id AND s.id = a.id AND s.rev = a.rev
RETURNING s.id;

-- name: lock_unfinished
-- The oldest unfinished tasks of a schedule, for a policy that cancels them.
SELECT id, state FROM tasks
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id
  AND concurrency_key IS DISTINCT FROM 'backfill:' || schedule_id AND NOT cancel_requested
ORDER BY id LIMIT :limit FOR UPDATE;

-- name: cancel_tasks
-- Those that wait end at once, those that run are asked to stop; the owners are told.
WITH asked AS (
    UPDATE tasks t SET cancel_requested = true, rev = t.rev + 1
    WHERE t.tenant_id = :tenant_id AND t.id = ANY (:ids::uuid[]) AND t.state = 'running'
    RETURNING t.partition, t.tenant_id, t.id
), ended AS (
    DELETE FROM tasks t
    WHERE t.tenant_id = :tenant_id AND t.id = ANY (:ids::uuid[]) AND t.state <> 'running'
    RETURNING t.*, clock_timestamp() AS now
), history AS (
    INSERT INTO task_history (id, created_at, run_at, due_at, expires_at, finished_at,
        tenant_id, rev, fence, attempts, failures, concurrency_limit, priority, state, queue,
        capability, concurrency_key, name, labels, error, spec, payload, replay_of, schedule_id,
        nominal_at, started_at, sla_met, blame, lateness)
    SELECT id, created_at, run_at, due_at, expires_at, now,
        tenant_id, rev + 1, fence, attempts, failures, concurrency_limit, priority, 'cancelled',
        queue, capability, concurrency_key, name, labels, error, spec, payload, replay_of,
        schedule_id, nominal_at, j.*
    FROM ended CROSS JOIN LATERAL judge_end('cancelled', state, earlier, waited, due_at,
        paused_at, spec, now) AS j
), told AS (
    SELECT partition, tenant_id, id FROM asked
    UNION ALL SELECT partition, tenant_id, id FROM ended
)
INSERT INTO wakes (partition, tenant_id, task_id) SELECT * FROM told RETURNING partition;

-- name: overdue
-- The watchdog: whose time has passed by so much without a decision, wherever they live? It is
-- enough to know that there are many; and now(), unlike the clock itself, can be looked up by index.
SELECT count(*) AS schedules, min(wake_at) AS since FROM (
    SELECT wake_at FROM schedules
    WHERE state = 'active' AND wake_at < now() - :seconds * interval '1 second'
    ORDER BY wake_at LIMIT 10000
) standing;

-- name: report_overdue
-- One event for each time that stands undecided, whichever node notices it first: what somebody
-- else holds is being decided on, or told of, at this moment.
WITH standing AS MATERIALIZED (
    SELECT tenant_id, id, name, wake_at, next_at FROM schedules
    WHERE state = 'active' AND wake_at < now() - :seconds * interval '1 second'
      AND told_for IS DISTINCT FROM wake_at
    ORDER BY wake_at LIMIT :limit
    FOR UPDATE SKIP LOCKED
), told AS (
    UPDATE schedules s SET told_for = t.wake_at FROM standing t
    WHERE s.tenant_id = t.tenant_id AND s.id = t.id
)
INSERT INTO outbox (tenant_id, kind, body)
SELECT tenant_id, 'schedule.overdue', jsonb_build_object('schedule_id', id, 'name', name,
    'nominal_at', next_at, 'due_at', wake_at)
FROM standing
RETURNING body ->> 'schedule_id' AS schedule;

-- name: lock_outdated
-- Schedules whose next time was computed with an older tz database, a few at a time. They are found
-- by their index before they are put in order: this is asked every few seconds, and mostly in vain.
WITH outdated AS MATERIALIZED (
    SELECT tenant_id, id FROM schedules
    WHERE tzdata < :tzdata AND partition = ANY (:partitions::smallint[]) LIMIT :limit
)
SELECT {schedule}
FROM outdated o JOIN schedules s ON s.tenant_id = o.tenant_id AND s.id = o.id
WHERE s.tzdata < :tzdata
ORDER BY s.tenant_id, s.id
FOR UPDATE OF s SKIP LOCKED;

-- name: retime
-- Their future by the new tz database; what was decided stays.
UPDATE schedules s
SET rev = s.rev + 1, tzdata = :tzdata, next_at = to_timestamp(a.next), wake_at = to_timestamp(a.wake),
    state = CASE WHEN a.next IS NULL THEN 'ended' ELSE s.state END
FROM unnest(:tenant_id::integer[], :id::uuid[], :rev::integer[], :next::float8[], :wake::float8[])
    AS a (tenant_id, id, rev, next, wake)
WHERE s.tenant_id = a.tenant_id AND s.id = a.id AND s.rev = a.rev;
