-- What is known of executions that workers never reported: whether they began, and whether they did so alone.
-- Way back: ALTER TABLE tasks DROP COLUMN began, DROP COLUMN began_alone, DROP COLUMN unproven_losses. Older
-- nodes run beside this schema: they name their columns, and count losses as they did before.

ALTER TABLE tasks
    -- Whether the worker said that the present execution has begun.
    ADD COLUMN began           boolean NOT NULL DEFAULT false,
    -- Whether it also said that nothing else runs in it.
    ADD COLUMN began_alone     boolean NOT NULL DEFAULT false,
    -- How often, since the last report, a lease ended of an execution that is not known to have begun;
    -- `losses` counts the others.
    ADD COLUMN unproven_losses smallint NOT NULL DEFAULT 0;
