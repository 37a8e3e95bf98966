-- Workflows: named definitions, of which every version is kept.
-- Way back: DROP TABLE workflow_versions, workflows. Older nodes run beside this schema: they know
-- nothing of it.

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
