-- What changes of tables need to know.

-- name: list_partitions
SELECT child.relname AS name
FROM pg_inherits i
JOIN pg_class child ON child.oid = i.inhrelid
JOIN pg_class parent ON parent.oid = i.inhparent
WHERE parent.relname = :table AND parent.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'tasks'::regclass)
  AND child.relname ~ '_d[0-9]{8}$'
ORDER BY child.relname;

-- name: default_size
-- How many bytes somebody has to look through to make a partition.
SELECT pg_relation_size((:table || '_default')::regclass) AS bytes;

-- name: detached_partitions
-- Tables that were detached and are neither dropped nor handed over yet.
SELECT c.relname AS name FROM pg_class c
WHERE c.relkind = 'r' AND c.relname ~ ('^' || :table || '_d[0-9]{8}$')
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'tasks'::regclass) AND NOT c.relispartition
ORDER BY c.relname;

-- name: allow_purge
-- Lets the append-only trigger pass, for this transaction.
SELECT set_config('mainspring.purge', 'on', true);

-- name: home
-- The schema our tables are in. Not the current one: that may be another's by now.
SELECT quote_ident(n.nspname) AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = 'tasks'::regclass;

-- name: today
SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date AS today;
