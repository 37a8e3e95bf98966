-- Wake rows have names, so that their owner deletes those of which its engine has heard, and no others;
-- and mainspring.enqueue() refuses targets that the API refuses: nobody could read or call them.
-- Way back: ALTER TABLE wakes DROP COLUMN id; the DO below with the texts of each pair exchanged; DROP
-- FUNCTION mainspring.is_callable. Older nodes run beside this schema: they name their columns, and delete
-- what is in their partitions.

ALTER TABLE wakes ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;

-- Whether there is one way to read a URL, and somebody to call: as the API finds it.
CREATE FUNCTION mainspring.is_callable(url text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts constant text[] := regexp_match(url, '^https?://(?:\[([0-9a-f:.]+)\]|([a-z0-9_~.-]+))(?::([0-9]*))?'
        '(?:[/?#][^[:space:][:cntrl:]\\]*)?$', 'i');
    host constant text := parts[2];
BEGIN
    IF parts IS NULL OR coalesce(nullif(parts[3], ''), '80')::numeric NOT BETWEEN 1 AND 65535 THEN
        RETURN false;
    ELSIF host IS NULL THEN
        RETURN family(parts[1]::inet) = 6;
    END IF;
    RETURN length(host) <= 253 AND host ~* '^[a-z0-9_~-]{1,63}(\.[a-z0-9_~-]{1,63})*\.?$'
        AND (host !~* '(^|\.)(0x[0-9a-f]*|[0-9]+)\.?$'
             OR host ~ '^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(\.(?!$)|$)){4}$');
EXCEPTION WHEN invalid_text_representation THEN
    RETURN false;
END $$;
REVOKE ALL ON FUNCTION mainspring.is_callable FROM PUBLIC;

DO $$
DECLARE
    made constant regprocedure := (SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = 'mainspring'::regnamespace AND p.proname = 'enqueue');
    definition text := pg_get_functiondef(made);
    pair text[];
BEGIN
    FOREACH pair SLICE 1 IN ARRAY ARRAY[
        ['WHEN kind = ''handler'' AND (coalesce(target ->> ''name'', '''')',
         'WHEN kind = ''handler'' AND (jsonb_typeof(target -> ''name'') IS DISTINCT FROM ''string''
            OR (target ->> ''name'')'],
        ['WHEN kind = ''http'' AND (coalesce(target ->> ''url'', '''') !~* ''^https?://[^[:space:][:cntrl:]]+$''
            OR length',
         'WHEN kind = ''http'' AND NOT mainspring.is_callable(coalesce(target ->> ''url'', ''''))
            THEN ''target has a url that cannot be called''
        WHEN kind = ''http'' AND (length']]
    LOOP
        ASSERT strpos(definition, pair[1]) > 0, pair[1];
        definition := replace(definition, pair[1], pair[2]);
    END LOOP;
    -- To replace a function leaves its owner and who may call it as they are.
    EXECUTE definition;
END $$;
