-- Dead letters say of which run they were a step.
-- Way back: ALTER TABLE dead_letters DROP COLUMN workflow_run_id, DROP COLUMN step. Older nodes run
-- beside this schema: they name their columns, and both new ones may be empty.

ALTER TABLE dead_letters
    ADD COLUMN workflow_run_id uuid,
    ADD COLUMN step            text;
