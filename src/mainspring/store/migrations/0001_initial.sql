-- The first schema. Way back: drop the database; there is nothing older.

-- Tenants and the keys by which callers are known ------------------------------------------------

CREATE TABLE tenants (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 100),
    weight      integer NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 1000),
    max_running integer CHECK (max_running > 0),
    spread      smallint NOT NULL DEFAULT 256 CHECK (spread BETWEEN 1 AND 256),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Each of the `spread` partitions gets max_running / spread: a share of nothing is no limit.
    CHECK (max_running IS NULL OR max_running >= spread)
);

CREATE TABLE api_keys (
    id           text PRIMARY KEY,
    tenant_id    integer REFERENCES tenants (id) ON DELETE CASCADE,
    secret_hash  bytea NOT NULL UNIQUE,
    name         text,
    scopes       text[] NOT NULL,
    operator     boolean NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    CHECK (operator OR tenant_id IS NOT NULL)
);

-- Placement --------------------------------------------------------------------------------------

-- The same function as mainspring.domain.placement.partition_of; a contract test compares them.
CREATE FUNCTION partition_of(tenant integer, id uuid, key text, spread integer) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ((tenant::bigint * 167
             + CASE WHEN key IS NULL THEN get_byte(uuid_send(id), 15)
               ELSE get_byte(sha256(convert_to(tenant::text || ':' || key, 'UTF8')), 0) END
               % spread * (256 / spread)) % 256)::smallint
$$;

-- When a UUIDv7 was made, less a second for clocks that were corrected meanwhile.
CREATE FUNCTION time_of(id uuid) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN substr(id::text, 15, 1) = '7'
           THEN to_timestamp(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint / 1000.0)
                - interval '1 second'
           ELSE '-infinity'::timestamptz END
$$;

-- Tasks: only unfinished work, narrow and small --------------------------------------------------

CREATE TABLE tasks (
    id                uuid NOT NULL,
    created_at        timestamptz NOT NULL,
    run_at            timestamptz NOT NULL,
    due_at            timestamptz NOT NULL,
    expires_at        timestamptz,
    picked_at         timestamptz,
    lease_until       timestamptz,
    -- No foreign key: its check would lock the tenant's row once per task instead of per statement.
    tenant_id         integer NOT NULL,
    rev               integer NOT NULL DEFAULT 1,
    fence             integer NOT NULL DEFAULT 0,
    attempts          integer NOT NULL DEFAULT 0,
    failures          integer NOT NULL DEFAULT 0,
    concurrency_limit integer,
    partition         smallint NOT NULL CHECK (partition BETWEEN 0 AND 255),
    priority          smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    -- True while time does not matter. Kept apart from state so that the window's index can leave
    -- parked rows out and a claim, which changes state, is still a HOT update.
    parked            boolean NOT NULL DEFAULT false,
    cancel_requested  boolean NOT NULL DEFAULT false,
    state             text NOT NULL DEFAULT 'scheduled',
    queue             text NOT NULL,
    capability        text NOT NULL,
    concurrency_key   text,
    worker            text,
    name              text,
    labels            jsonb,
    error             jsonb,
    spec              bytea NOT NULL,
    payload           bytea NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT state_is_unfinished CHECK (state IN ('scheduled', 'blocked', 'paused', 'running')),
    CONSTRAINT parked_follows_state CHECK (parked = (state IN ('blocked', 'paused'))),
    CONSTRAINT running_holds_a_lease CHECK (
        (state = 'running') = (lease_until IS NOT NULL AND worker IS NOT NULL AND picked_at IS NOT NULL)),
    CONSTRAINT only_running_hears_cancel CHECK (state = 'running' OR NOT cancel_requested),
    CONSTRAINT key_has_limit CHECK ((concurrency_key IS NULL) = (concurrency_limit IS NULL))
) WITH (
    -- Half-empty pages let a claim stay on its page; vacuum within seconds keeps the table small.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);

-- What an owner looks at. `state` is in no index.
CREATE INDEX tasks_window ON tasks (partition, due_at) WHERE NOT parked;
CREATE INDEX tasks_expiry ON tasks (expires_at) WHERE expires_at IS NOT NULL;

-- A task as its owner sees it: what the window needs and nothing more, times as seconds.
CREATE VIEW window_rows AS
SELECT tenant_id, id, rev, partition, state, queue, capability, concurrency_key, concurrency_limit,
    priority, extract(epoch FROM due_at)::float8 AS due, extract(epoch FROM expires_at)::float8 AS expires,
    fence, extract(epoch FROM lease_until)::float8 AS lease_end, cancel_requested, due_at, parked
FROM tasks;

CREATE TABLE task_history (
    id                uuid NOT NULL,
    created_at        timestamptz NOT NULL,
    run_at            timestamptz NOT NULL,
    due_at            timestamptz NOT NULL,
    expires_at        timestamptz,
    picked_at         timestamptz,
    started_at        timestamptz,
    finished_at       timestamptz NOT NULL,
    tenant_id         integer NOT NULL,
    rev               integer NOT NULL,
    fence             integer NOT NULL,
    attempts          integer NOT NULL,
    failures          integer NOT NULL,
    concurrency_limit integer,
    priority          smallint NOT NULL,
    sla_met           boolean,
    state             text NOT NULL,
    queue             text NOT NULL,
    capability        text NOT NULL,
    concurrency_key   text,
    name              text,
    blame             text,
    labels            jsonb,
    error             jsonb,
    lateness          jsonb,
    spec              bytea NOT NULL,
    payload           bytea NOT NULL,
    result            bytea,
    PRIMARY KEY (tenant_id, id, finished_at),
    CONSTRAINT state_is_final CHECK (
        state IN ('completed', 'failed', 'cancelled', 'expired', 'skipped'))
) PARTITION BY RANGE (finished_at);

CREATE TABLE task_history_default PARTITION OF task_history DEFAULT;

-- One row per try, written when the try is over --------------------------------------------------

CREATE TABLE executions (
    task_id     uuid NOT NULL,
    due_at      timestamptz NOT NULL,
    picked_at   timestamptz NOT NULL,
    started_at  timestamptz,
    finished_at timestamptz NOT NULL,
    tenant_id   integer NOT NULL,
    fence       integer NOT NULL,
    attempt     integer NOT NULL,
    status_code integer,
    outcome     text NOT NULL CHECK (
        outcome IN ('succeeded', 'failed', 'timed_out', 'lost', 'cancelled', 'released')),
    worker      text NOT NULL,
    error       jsonb,
    response    bytea,
    PRIMARY KEY (tenant_id, task_id, fence, finished_at)
) PARTITION BY RANGE (finished_at);

CREATE TABLE executions_default PARTITION OF executions DEFAULT;

-- A task that failed for good. A copy, so that retention of history never breaks it.
CREATE TABLE dead_letters (
    id           uuid NOT NULL,
    tenant_id    integer NOT NULL,
    died_at      timestamptz NOT NULL,
    reason       text NOT NULL CHECK (reason IN ('exhausted', 'not_retryable', 'poison')),
    name         text,
    queue        text NOT NULL,
    priority     smallint NOT NULL,
    concurrency_key   text,
    concurrency_limit integer,
    labels       jsonb,
    final_error  jsonb,
    attempts     jsonb NOT NULL,
    spec         bytea NOT NULL,
    payload      bytea NOT NULL,
    resolution   text CHECK (resolution IN ('replayed', 'archived')),
    resolved_at  timestamptz,
    PRIMARY KEY (tenant_id, id),
    CHECK ((resolution IS NULL) = (resolved_at IS NULL))
);

-- Idempotency: the first answer under a key --------------------------------------------------------

CREATE TABLE idempotency_keys (
    tenant_id  integer NOT NULL,
    key        text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    body_hash  bytea NOT NULL,
    status     smallint NOT NULL,
    answer     bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);

-- The cluster --------------------------------------------------------------------------------------

CREATE TABLE nodes (
    id           uuid PRIMARY KEY,
    name         text NOT NULL,
    url          text,
    version      text NOT NULL,
    epoch        bigint NOT NULL DEFAULT 1,
    state        text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'dead', 'left')),
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);

CREATE TABLE partitions (
    partition smallint PRIMARY KEY CHECK (partition BETWEEN 0 AND 255),
    owner     uuid,
    epoch     bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
INSERT INTO partitions (partition) SELECT generate_series(0, 255);

CREATE FUNCTION epoch_only_rises() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.epoch < OLD.epoch OR (TG_TABLE_NAME = 'partitions' AND NEW.epoch <= OLD.epoch) THEN
        RAISE EXCEPTION 'the epoch of % may only rise', TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER partitions_epoch BEFORE UPDATE ON partitions
    FOR EACH ROW EXECUTE FUNCTION epoch_only_rises();
CREATE TRIGGER nodes_epoch BEFORE UPDATE ON nodes
    FOR EACH ROW EXECUTE FUNCTION epoch_only_rises();

-- "Look at this task again": written in the transaction of the change, deleted by the owner.
CREATE TABLE wakes (
    partition smallint NOT NULL,
    tenant_id integer NOT NULL,
    task_id   uuid NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX wakes_partition ON wakes (partition);

-- Work of which the whole cluster needs only one doer at a time.
CREATE TABLE duties (
    name        text PRIMARY KEY,
    holder      uuid NOT NULL,
    lease_until timestamptz NOT NULL
);

-- After the commit ---------------------------------------------------------------------------------

CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id  integer NOT NULL,
    kind       text NOT NULL,
    body       jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE audit (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id integer NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text NOT NULL,
    action    text NOT NULL,
    subject   text NOT NULL,
    detail    jsonb
);
CREATE INDEX audit_tenant ON audit (tenant_id, id);

-- What was recorded stays as it was. Only a purge, which says so, may delete executions.
CREATE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_ARGV[0] = 'purgeable'
       AND current_setting('mainspring.purge', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END $$;
CREATE TRIGGER executions_append_only BEFORE UPDATE OR DELETE ON executions
    FOR EACH ROW EXECUTE FUNCTION append_only('purgeable');
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION append_only('final');
