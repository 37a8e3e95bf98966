-- The table of unfinished tasks was analyzed every other second under load, a third of a second each
-- time. Vacuum keeps count of its rows, and crowds are announced (store/planner.py): nothing else of
-- what an analysis finds decides how our statements are planned, least of all in the wide columns.
-- Way back: ALTER TABLE tasks SET (autovacuum_analyze_threshold = 50000), and STATISTICS -1 for each.

ALTER TABLE tasks SET (autovacuum_analyze_threshold = 1000000);
ALTER TABLE tasks
    ALTER COLUMN labels SET STATISTICS 0,
    ALTER COLUMN error SET STATISTICS 0,
    ALTER COLUMN progress SET STATISTICS 0,
    ALTER COLUMN spec SET STATISTICS 0,
    ALTER COLUMN payload SET STATISTICS 0;
