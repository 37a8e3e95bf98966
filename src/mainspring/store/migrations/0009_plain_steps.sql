-- Which steps leave nothing to decide when they succeed: their ends are recorded in one statement.
-- Way back: ALTER TABLE workflow_steps DROP COLUMN plain, DROP COLUMN inside. Older nodes run beside
-- this schema: steps that they make are neither, and are decided on and started one by one.

ALTER TABLE workflow_steps
    ADD COLUMN plain  boolean NOT NULL DEFAULT false,
    -- Run by the node itself, without a concurrency key: it can start as it is released.
    ADD COLUMN inside boolean NOT NULL DEFAULT false;
