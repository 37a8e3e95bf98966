-- Which steps leave nothing to decide when they succeed: their ends are recorded in one statement.
-- Way back: ALTER TABLE workflow_steps DROP COLUMN plain, DROP COLUMN inside; partition_of as in 0001.
-- Older nodes run beside this schema: steps that they make are neither, and are decided on and
-- started one by one.

ALTER TABLE workflow_steps
    ADD COLUMN plain  boolean NOT NULL DEFAULT false,
    -- Run by the node itself, without a concurrency key: it can start as it is released.
    ADD COLUMN inside boolean NOT NULL DEFAULT false;

-- The same results as before. The planner puts the body of a function in the place of its call only
-- where it holds nothing that may change with a session, and the conversion of a key may: so that has
-- a function of its own, and creating a task calls none. (RETURN: names are looked up here and now,
-- and not by the search_path of a caller.)
CREATE FUNCTION key_byte(tenant integer, key text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN get_byte(sha256(convert_to(tenant::text || ':' || key, 'UTF8')), 0);
CREATE OR REPLACE FUNCTION partition_of(tenant integer, id uuid, key text, spread integer)
RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ((tenant::bigint * 167
         + CASE WHEN key IS NULL THEN get_byte(uuid_send(id), 15) ELSE key_byte(tenant, key) END
           % spread * (256 / spread)) % 256)::smallint;
