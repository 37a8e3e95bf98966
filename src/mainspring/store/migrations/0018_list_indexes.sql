-- Indexes by which lists find the few tasks among many that a filter names. Each is partial, so that only
-- tasks pay for it that have what it is about: most complete, and most are in the default queue. In the
-- order of bytes, which is the cheapest to keep. Labels of different tenants are different values. The index of
-- due times is one of blocks: tasks end about when they are due, so each block of history has a short range.
-- Way back: DROP INDEX tasks_name, tasks_queue, tasks_run, tasks_label, tasks_parked, task_history_name,
-- task_history_queue, task_history_state, task_history_schedule, task_history_run, task_history_label,
-- task_history_due. Nodes of any version run beside this schema.

-- Unfinished tasks are few: a million are indexed in a second or two, and nobody may change them meanwhile.
-- None of these columns changes with a claim, which stays a HOT update.
CREATE INDEX tasks_name ON tasks (tenant_id, name COLLATE "C", id) WHERE name IS NOT NULL;
CREATE INDEX tasks_queue ON tasks (tenant_id, queue COLLATE "C", id) WHERE queue <> 'default';
CREATE INDEX tasks_run ON tasks (tenant_id, workflow_run_id, id) WHERE workflow_run_id IS NOT NULL;
CREATE INDEX tasks_parked ON tasks (tenant_id, id) WHERE parked;
CREATE INDEX tasks_label ON tasks USING gin (jsonb_set('{}', ARRAY[tenant_id::text], labels) jsonb_path_ops)
    WITH (gin_pending_list_limit = 512) WHERE labels IS NOT NULL;

-- History may be large, and no task can end while it is indexed. Up to 256 MB that takes a second; else
-- the indexes are only declared here: new partitions have them, housekeeping builds them on the others
-- while everything goes on, and lists use them once every partition has them.
DO $$
DECLARE
    size constant numeric := (SELECT coalesce(sum(pg_relation_size(inhrelid)), 0)
        FROM pg_inherits WHERE inhparent = 'task_history'::regclass);
    scope constant text := CASE WHEN size <= 268435456 THEN '' ELSE 'ONLY' END;
    definition text;
BEGIN
    FOREACH definition IN ARRAY ARRAY[
        'task_history_name ON %s task_history (tenant_id, name COLLATE "C", id) WHERE name IS NOT NULL',
        'task_history_queue ON %s task_history (tenant_id, queue COLLATE "C", id) WHERE queue <> ''default''',
        'task_history_state ON %s task_history (tenant_id, state COLLATE "C", id) WHERE state <> ''completed''',
        'task_history_schedule ON %s task_history (tenant_id, schedule_id, id) WHERE schedule_id IS NOT NULL',
        'task_history_run ON %s task_history (tenant_id, workflow_run_id, id) WHERE workflow_run_id IS NOT NULL',
        'task_history_label ON %s task_history USING gin (jsonb_set(''{}'', ARRAY[tenant_id::text], labels) '
            'jsonb_path_ops) WITH (gin_pending_list_limit = 512) WHERE labels IS NOT NULL',
        'task_history_due ON %s task_history USING brin (due_at timestamptz_minmax_multi_ops) '
            'WITH (autosummarize = on)']
    LOOP
        EXECUTE format('CREATE INDEX ' || definition, scope);
    END LOOP;
END $$;
