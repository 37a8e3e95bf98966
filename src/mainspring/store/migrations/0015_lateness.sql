-- Lateness over all tries of a task, the same whichever node records it.
-- Way back: ALTER TABLE executions DROP COLUMN lateness; DROP VIEW window_rows and make it as it was; ALTER
-- TABLE tasks DROP COLUMN waited, DROP COLUMN earlier, DROP COLUMN paused_at; DROP FUNCTION judge_end,
-- phase_to_blame, bound_of, waited_so_far, until_lost, until_picked, put_down, account_for, add_wait, sum_of.
-- Older nodes run beside this schema: they name their columns, and what they do not write is put down to
-- `waiting`.

ALTER TABLE tasks
    -- Seconds by cause since due_at, written by the claim (up to picked_at) and where a task waits again
    -- that is as due as before. Empty for what is on time.
    ADD COLUMN waited    jsonb,
    -- What the next try has to know of those before (domain/lateness.py, Earlier). Empty in the first.
    ADD COLUMN earlier   jsonb,
    ADD COLUMN paused_at timestamptz;
ALTER TABLE tasks
    ALTER COLUMN waited SET STATISTICS 0,
    ALTER COLUMN earlier SET STATISTICS 0;

-- Of the try alone: it sums to started_at − due_at. NULL where it is the same as that of its task, in history.
ALTER TABLE executions ADD COLUMN lateness jsonb;

CREATE OR REPLACE VIEW window_rows AS
SELECT tenant_id, id, rev, partition, state, queue, capability, concurrency_key, concurrency_limit,
    priority, extract(epoch FROM due_at)::float8 AS due, extract(epoch FROM expires_at)::float8 AS expires,
    fence, extract(epoch FROM lease_until)::float8 AS lease_end, cancel_requested, due_at, parked,
    worker, incarnation, waited
FROM tasks;

-- The sums of domain/lateness.py ------------------------------------------------------------------

CREATE FUNCTION sum_of(waited jsonb) RETURNS float8
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce((SELECT sum(value::float8) FROM jsonb_each_text(waited)), 0);

CREATE FUNCTION add_wait(waited jsonb, cause text, seconds float8) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN seconds > 0 THEN coalesce(waited, '{}') || jsonb_build_object(cause,
        round((coalesce((waited ->> cause)::float8, 0) + seconds)::numeric, 6))
    ELSE waited END;

-- The account that sums to so many seconds: what is missing is put down to the cause.
CREATE FUNCTION account_for(waited jsonb, seconds float8, cause text) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN seconds < 0.01 OR seconds - sum_of(waited) < 0.001 THEN waited
    ELSE add_wait(waited, cause, seconds - sum_of(waited)) END;

-- The account with its unattributed seconds put down to what somebody saw, as far as they go.
CREATE FUNCTION put_down(lateness jsonb, waited jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN account_for((
    SELECT jsonb_object_agg(key, seconds) FROM (
        SELECT key, round(sum(seconds)::numeric, 6) AS seconds FROM (
            SELECT key, value::float8 AS seconds FROM jsonb_each_text(lateness - 'unattributed')
            UNION ALL
            SELECT key, value::float8
                * least(1, (lateness ->> 'unattributed')::float8 / nullif(sum_of(waited), 0))
            FROM jsonb_each_text(waited)) AS parts GROUP BY key) AS sums),
    sum_of(lateness), 'waiting');

CREATE FUNCTION until_picked(waited jsonb, due timestamptz, picked timestamptz) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN account_for(
    CASE WHEN sum_of(waited) <= extract(epoch FROM picked - due)::float8 + 0.1 THEN waited END,
    extract(epoch FROM picked - due)::float8, 'waiting');

CREATE FUNCTION until_lost(waited jsonb, due timestamptz, picked timestamptz, ended timestamptz)
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN account_for(until_picked(waited, due, picked), extract(epoch FROM ended - due)::float8,
    'failed_tries');

-- Of a task that may be paused.
CREATE FUNCTION waited_so_far(state text, waited jsonb, due timestamptz, paused timestamptz, moment timestamptz)
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN state = 'paused' THEN add_wait(waited, 'paused',
        extract(epoch FROM moment - greatest(paused, due))::float8)
    ELSE waited END;

CREATE FUNCTION phase_to_blame(waited jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce((
    SELECT CASE
        WHEN key IN ('tenant_limit', 'rate_limit', 'concurrency_key', 'overlap', 'paused') THEN 'limits'
        WHEN key IN ('no_worker', 'fair_share', 'worker_queue', 'breaker_open', 'failed_tries')
            THEN 'capacity'
        ELSE 'scheduler' END
    FROM jsonb_each_text(waited) ORDER BY value::float8 DESC LIMIT 1), 'scheduler');

-- How late a task may start. Nobody can read some specs: then it is as if nothing was asked for.
CREATE FUNCTION bound_of(spec bytea) RETURNS float8
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RETURN coalesce((convert_from(spec, 'UTF8')::json ->> 'sla')::float8, 30);
EXCEPTION WHEN others THEN
    RETURN 30;
END $$;

-- What is to be said of a task that ends while it waits, or by being lost: as its first start decided, or
-- else by how late it is. What of that nobody has accounted for, its owner may know. A blocked task was
-- never due.
CREATE FUNCTION judge_end(
    final text, state text, earlier jsonb, waited jsonb, due timestamptz, paused timestamptz, spec bytea,
    ended timestamptz,
    OUT started_at timestamptz, OUT sla_met boolean, OUT blame text, OUT lateness jsonb)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT to_timestamp((earlier ->> 'start')::float8),
        CASE WHEN earlier IS NOT NULL THEN (earlier ->> 'met')::boolean WHEN late.missed THEN false END,
        CASE WHEN earlier IS NOT NULL THEN earlier ->> 'blame'
             WHEN late.missed THEN phase_to_blame(whole.waited) END,
        CASE WHEN earlier IS NOT NULL THEN nullif(earlier -> 'lateness', '{}') ELSE whole.waited END
    FROM (SELECT extract(epoch FROM ended - due)::float8 AS seconds) AS age
    CROSS JOIN LATERAL (SELECT earlier IS NULL AND age.seconds > bound_of(spec) AS missed) AS late
    CROSS JOIN LATERAL (
        SELECT account_for(waited_so_far(state, waited, due, paused, ended), age.seconds,
            'unattributed') AS waited) AS whole
    WHERE final IN ('cancelled', 'expired', 'failed') AND state <> 'blocked';
END;
