-- What mainspring.enqueue() creates after its run_at is due when it is created, as over the API: the time
-- before is nobody's lateness, and gives it no place in the queue that others waited for.
-- Way back: the same DO with the texts of each pair exchanged. Nodes of any version run beside this schema.

DO $$
DECLARE
    made constant regprocedure := (SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = 'mainspring'::regnamespace AND p.proname = 'enqueue');
    definition text := pg_get_functiondef(made);
    pair text[];
BEGIN
    FOREACH pair SLICE 1 IN ARRAY ARRAY[
        ['due constant timestamptz := coalesce(run_at, now_at + coalesce(delay, interval ''0''));',
         'asked constant timestamptz := coalesce(run_at, now_at + coalesce(delay, interval ''0''));
    due constant timestamptz := greatest(asked, now_at);'],
        ['due < to_timestamp(0)', 'asked < to_timestamp(0)'],
        ['VALUES (new_id, now_at, due, due,', 'VALUES (new_id, now_at, asked, due,']]
    LOOP
        ASSERT strpos(definition, pair[1]) > 0, pair[1];
        definition := replace(definition, pair[1], pair[2]);
    END LOOP;
    -- To replace a function leaves its owner and who may call it as they are.
    EXECUTE definition;
END $$;
