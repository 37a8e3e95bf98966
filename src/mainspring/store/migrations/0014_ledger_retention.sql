-- The ledger of occurrences is kept by when a line was decided, not by the time it is about: a backfill of
-- years ago must be remembered too, or it runs again (store/ledger_retention.py).
-- Way back: DROP TABLE deleted_schedules; DROP INDEX occurrences_decided; DROP TRIGGER occurrences_append_only
-- ON occurrences and create the one of 0005 again; DROP FUNCTION ledger_append_only. Partitions keep their
-- names; nodes of an earlier version then neither retire them nor make new ones for the months they cover.
-- Older nodes run beside this schema. Their housekeeping would clear and drop by nominal date. It finds no
-- partition by the names it knows, makes none where there is one for the month, and deletes no line of a
-- schedule that exists: the trigger leaves those out.
-- While the index is made nothing is decided: about a second for a million lines.

CREATE INDEX occurrences_decided ON occurrences (decided_at);

DO $$
DECLARE
    child record;
BEGIN
    FOR child IN
        SELECT i.inhrelid::regclass AS name, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'occurrences'::regclass AND c.relname ~ '^occurrences_d[0-9]{8}$'
    LOOP
        EXECUTE format('ALTER TABLE %s RENAME TO %I', child.name,
            replace(child.relname, 'occurrences_d', 'occurrences_m'));
    END LOOP;
END $$;

-- Schedules that were deleted and whose lines are still there: they go in small steps.
CREATE TABLE deleted_schedules (
    tenant_id  integer NOT NULL,
    id         uuid PRIMARY KEY,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Like append_only; but what was decided about a schedule that exists goes only for whoever says that it
-- goes by its age. Older nodes do not say so.
CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' OR current_setting('mainspring.purge', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
    ELSIF current_setting('mainspring.purge_ledger', true) = 'on' OR NOT EXISTS (
        SELECT FROM schedules s JOIN tenants t ON t.id = s.tenant_id
        WHERE s.tenant_id = OLD.tenant_id AND s.id = OLD.schedule_id)
    THEN
        RETURN OLD;
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER occurrences_append_only ON occurrences;
CREATE TRIGGER occurrences_append_only BEFORE UPDATE OR DELETE ON occurrences
    FOR EACH ROW EXECUTE FUNCTION ledger_append_only();
