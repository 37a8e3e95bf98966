-- Schedules, their occurrences, and calendars of dates on which nothing runs.
-- Way back: DROP TABLE occurrences, schedules, calendars; DROP FUNCTION holidays; DROP INDEX tasks_schedule; ALTER TABLE tasks
-- and task_history DROP COLUMN schedule_id, DROP COLUMN nominal_at. Older nodes run beside this
-- schema: they name their columns, and they materialise nothing.

-- Whose task it is, and for which time. Most tasks have neither.
ALTER TABLE tasks
    ADD COLUMN schedule_id uuid,
    ADD COLUMN nominal_at  timestamptz;
ALTER TABLE task_history
    ADD COLUMN schedule_id uuid,
    ADD COLUMN nominal_at  timestamptz;

-- For the overlap policies: what of this schedule is unfinished? A claim changes neither column, so
-- it stays a HOT update, and tasks without a schedule are not in here.
CREATE INDEX tasks_schedule ON tasks (schedule_id) WHERE schedule_id IS NOT NULL;

CREATE TABLE schedules (
    tenant_id   integer NOT NULL,
    id          uuid NOT NULL,
    name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    state       text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'ended')),
    -- `rev` rises with every decision and guards them; `edition` only when a person changes something.
    rev         integer NOT NULL DEFAULT 1,
    edition     integer NOT NULL DEFAULT 1,
    -- Where it lives: by its id alone, so that a tenant's limits never move it.
    partition   smallint NOT NULL CHECK (partition BETWEEN 0 AND 255),
    timezone    text NOT NULL,
    -- The tz database that next_at was computed with.
    tzdata      text NOT NULL,
    calendars   text[] NOT NULL DEFAULT '{}',
    definition  bytea NOT NULL,
    template    bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Every occurrence up to here has its line in the ledger.
    decided_to  timestamptz NOT NULL,
    -- The next nominal time after that, and when it is decided on (after its share of the spread).
    next_at     timestamptz,
    wake_at     timestamptz,
    last_at     timestamptz,
    runs        bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, name),
    CONSTRAINT ended_has_no_next CHECK ((state = 'ended') = (next_at IS NULL)),
    CONSTRAINT next_is_woken CHECK ((next_at IS NULL) = (wake_at IS NULL))
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- What owners look at: however many schedules wait for later, one descent. Not by partition first:
-- that would be a descent for each of them, four times a second.
CREATE INDEX schedules_due ON schedules (wake_at) WHERE state = 'active';
CREATE INDEX schedules_tzdata ON schedules (tzdata);

-- The ledger: one line per decision, for one nominal time or a range of them. `pass` is 0 for the
-- decision taken when the time came, 1 for a later backfill.
CREATE TABLE occurrences (
    schedule_id uuid NOT NULL,
    nominal_at  timestamptz NOT NULL,
    pass        smallint NOT NULL DEFAULT 0 CHECK (pass IN (0, 1)),
    tenant_id   integer NOT NULL,
    to_at       timestamptz NOT NULL,
    count       bigint NOT NULL DEFAULT 1 CHECK (count >= 1),
    decision    text NOT NULL CHECK (decision IN ('fired', 'skipped_overlap', 'skipped_misfire',
        'skipped_excluded', 'skipped_paused', 'coalesced', 'backfilled')),
    reason      text NOT NULL,
    task_id     uuid,
    decided_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule_id, nominal_at, pass),
    CONSTRAINT fired_has_task CHECK ((decision IN ('fired', 'backfilled')) = (task_id IS NOT NULL)),
    CONSTRAINT one_or_a_range CHECK (to_at >= nominal_at AND (count > 1 OR to_at = nominal_at)),
    CONSTRAINT backfill_is_a_pass CHECK ((decision = 'backfilled') = (pass = 1))
) PARTITION BY RANGE (nominal_at);

CREATE TABLE occurrences_default PARTITION OF occurrences DEFAULT;

CREATE TRIGGER occurrences_append_only BEFORE UPDATE OR DELETE ON occurrences
    FOR EACH ROW EXECUTE FUNCTION append_only('purgeable');

CREATE TABLE calendars (
    tenant_id  integer NOT NULL,
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    rev        integer NOT NULL DEFAULT 1,
    dates      date[] NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, name)
);

-- The dates of some of a tenant's calendars, in order.
CREATE FUNCTION holidays(tenant integer, names text[]) RETURNS text[]
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT array_agg(DISTINCT day::text ORDER BY day::text)
    FROM calendars c, unnest(c.dates) AS day
    WHERE c.tenant_id = tenant AND c.name = ANY (names)
$$;
