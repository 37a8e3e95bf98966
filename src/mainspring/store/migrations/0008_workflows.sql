-- Workflows: named definitions, of which every version is kept; their runs and steps.
-- Way back: DROP TABLE workflow_steps, workflow_runs, workflow_versions, workflows; ALTER TABLE tasks
-- and task_history DROP COLUMN workflow_run_id, DROP COLUMN step. Older nodes run beside this schema
-- until the first run begins: they would end a step's task without telling its run.

-- One row per name: its latest version, and the place where writers of the next one queue.
CREATE TABLE workflows (
    tenant_id   integer NOT NULL,
    -- Compared byte by byte, so that lists have one order whatever the database's language is.
    name        text COLLATE "C" NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    version     integer NOT NULL CHECK (version > 0),
    step_count  integer NOT NULL,
    on_failure  text NOT NULL CHECK (on_failure IN ('fail_fast', 'continue')),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Out of use: nobody finds it, but its runs still have their versions, and a workflow that is
    -- made again under the name goes on counting.
    archived_at timestamptz,
    PRIMARY KEY (tenant_id, name)
);

-- What runs are made by. A version never changes.
CREATE TABLE workflow_versions (
    tenant_id   integer NOT NULL,
    name        text COLLATE "C" NOT NULL,
    version     integer NOT NULL,
    step_count  integer NOT NULL,
    definition  bytea NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, name, version)
);

-- Runs ------------------------------------------------------------------------------------------

-- Whose step it is. Most tasks are none.
ALTER TABLE tasks
    ADD COLUMN workflow_run_id uuid,
    ADD COLUMN step            text;
ALTER TABLE task_history
    ADD COLUMN workflow_run_id uuid,
    ADD COLUMN step            text;

CREATE TABLE workflow_runs (
    tenant_id   integer NOT NULL,
    id          uuid NOT NULL,
    workflow    text NOT NULL,
    version     integer NOT NULL,
    -- Where it lives: its steps go there, too, unless very many start at once.
    partition   smallint NOT NULL CHECK (partition BETWEEN 0 AND 255),
    rev         integer NOT NULL DEFAULT 1,
    state       text NOT NULL DEFAULT 'running' CHECK (
        state IN ('running', 'paused', 'completed', 'failed', 'cancelled')),
    -- Why nothing new starts but what deals with the end: a failure, a wish, or the deadline.
    stopping    text CHECK (stopping IN ('failure', 'cancel', 'deadline')),
    total       integer NOT NULL,
    unfinished  integer NOT NULL CHECK (unfinished >= 0),
    failed      integer NOT NULL DEFAULT 0,
    input       bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    deadline_at timestamptz,
    schedule_id uuid,
    nominal_at  timestamptz,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT over_when_finished CHECK (
        (state IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT over_when_all_steps_are CHECK (finished_at IS NULL OR unfinished = 0)
) WITH (
    -- Every outcome of a step counts here: half-empty pages keep that on its page.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX workflow_runs_deadline ON workflow_runs (deadline_at)
    WHERE deadline_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX workflow_runs_schedule ON workflow_runs (schedule_id)
    WHERE schedule_id IS NOT NULL AND finished_at IS NULL;
CREATE INDEX workflow_runs_finished ON workflow_runs (finished_at) WHERE finished_at IS NOT NULL;

-- One row per step, and one more per item of a `foreach` (`item` is -1 for the step itself). It has
-- all that the run needs to know of it: retention of tasks never breaks a run.
CREATE TABLE workflow_steps (
    tenant_id   integer NOT NULL,
    run_id      uuid NOT NULL,
    step        text NOT NULL,
    item        integer NOT NULL DEFAULT -1,
    -- blocked: waits for others; released: its task lives; expanded: its items' tasks live.
    state       text NOT NULL CHECK (state IN ('blocked', 'released', 'expanded',
        'completed', 'failed', 'cancelled', 'expired', 'skipped')),
    -- How many it waits for, and how those ended so far; counted only while it waits.
    needed      integer NOT NULL,
    finished    integer NOT NULL DEFAULT 0,
    succeeded   integer NOT NULL DEFAULT 0,
    failed      integer NOT NULL DEFAULT 0,
    attempts    integer NOT NULL DEFAULT 0,
    -- Skipped by hand: those after it go on as if it had succeeded.
    waived      boolean NOT NULL DEFAULT false,
    children    text[] NOT NULL,
    task_id     uuid NOT NULL,
    due_at      timestamptz,
    started_at  timestamptz,
    finished_at timestamptz,
    result      bytea,
    error       jsonb,
    PRIMARY KEY (run_id, step, item),
    CONSTRAINT counted_within_bounds CHECK (
        finished BETWEEN 0 AND needed AND succeeded + failed <= finished)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);
