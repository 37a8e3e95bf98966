-- Workers: who they are, what they hold, what they log; messages between nodes; enqueueing in SQL.
-- Way back: DROP SCHEMA mainspring CASCADE; DROP TABLE task_logs, worker_leases, workers,
-- enqueue_roles, messages; DROP VIEW window_rows and make it as it was; ALTER TABLE tasks DROP COLUMN
-- incarnation, DROP COLUMN losses, DROP COLUMN progress. Older nodes run beside this schema: they
-- name their columns, and to them tasks of workers are tasks that nobody there can run.

ALTER TABLE tasks
    -- Which run of the worker's process holds the task; empty while a node's own executor does.
    ADD COLUMN incarnation text,
    -- How often it was lost together with its worker since its last report.
    ADD COLUMN losses      smallint NOT NULL DEFAULT 0,
    ADD COLUMN progress    jsonb;

CREATE OR REPLACE VIEW window_rows AS
SELECT tenant_id, id, rev, partition, state, queue, capability, concurrency_key, concurrency_limit,
    priority, extract(epoch FROM due_at)::float8 AS due, extract(epoch FROM expires_at)::float8 AS expires,
    fence, extract(epoch FROM lease_until)::float8 AS lease_end, cancel_requested, due_at, parked,
    worker, incarnation
FROM tasks;

CREATE TABLE workers (
    tenant_id   integer NOT NULL,
    name        text NOT NULL,
    incarnation text NOT NULL,
    -- Incarnations that were replaced: whoever comes with one of these has been given up.
    former      text[] NOT NULL DEFAULT '{}',
    offer       jsonb NOT NULL,
    about       jsonb NOT NULL DEFAULT '{}',
    leased      bigint NOT NULL DEFAULT 0,
    succeeded   bigint NOT NULL DEFAULT 0,
    failed      bigint NOT NULL DEFAULT 0,
    released    bigint NOT NULL DEFAULT 0,
    seq         bigint GENERATED ALWAYS AS IDENTITY,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, name)
) WITH (fillfactor = 50);
CREATE INDEX workers_seq ON workers (tenant_id, seq);

-- How many tasks a worker holds in the partitions of a node.
CREATE UNLOGGED TABLE worker_leases (
    tenant_id integer NOT NULL,
    name      text NOT NULL,
    node_id   uuid NOT NULL,
    held      integer NOT NULL,
    PRIMARY KEY (tenant_id, name, node_id)
) WITH (fillfactor = 50);

-- What nodes tell each other beside hints. All of it may be lost.
CREATE UNLOGGED TABLE messages (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id uuid NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    body    bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX messages_node ON messages (node_id, id);

CREATE TABLE task_logs (
    tenant_id integer NOT NULL,
    task_id   uuid NOT NULL,
    fence     integer NOT NULL,
    seq       bigint GENERATED ALWAYS AS IDENTITY,
    at        timestamptz NOT NULL,
    logged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    level     text NOT NULL,
    message   text NOT NULL,
    PRIMARY KEY (tenant_id, task_id, seq, logged_at)
) PARTITION BY RANGE (logged_at);

CREATE TABLE task_logs_default PARTITION OF task_logs DEFAULT;
