-- What the planner believes of the tables that many rows enter at once.

-- name: statistics_are_stale
-- Whether the planner takes the hot table for far smaller than it is. Its size is known at once; how
-- many rows are in it, which matters where they fill pages that were there, seconds later, unless the
-- caller knows of some (:added).
SELECT pg_relation_size(oid) / current_setting('block_size')::integer > 2 * greatest(relpages, 50)
    OR greatest(pg_stat_get_live_tuples(oid), :added::integer) >= 10 * greatest(reltuples, 100) AS stale
FROM pg_class WHERE oid = 'tasks'::regclass;

-- name: analyze_now
-- Not while vacuum is at work: somebody waits, and we look again.
ANALYZE (SKIP_LOCKED) tasks (tenant_id, id);

-- name: analyze_tasks
-- How many there are, and nothing of their states: those are about to change. Makes all plans anew.
ANALYZE tasks (tenant_id, id);

-- name: analyze_steps
ANALYZE workflow_steps (tenant_id, run_id, step, item);
