-- Nodes, partitions and the moves between them.

-- name: join_cluster
-- Enter the cluster, and let nothing be repeated that a life of this database may have issued which is no
-- more: the fences of tasks that there are rise to a floor, which no restore repeats because it follows the
-- clock. Where the server is another one than that of the last to join, or the node was a member before
-- (:former), its clock may be behind the one by which tasks were created: a minute is added. It is added again
-- while the floor is still ahead of the clock for that reason, else a restore within that minute would come back
-- to the same floor. Nodes that joined
-- another server can do nothing any more, and what they had in flight ended with it; our own former row may
-- have something in flight, for which FOR UPDATE waits. Rows of nodes are locked before those of partitions,
-- as by all who move them. The floor is not ahead of the clock by more than that minute, however many join:
-- else a life that is lost could have issued what the clock comes to later.
WITH was AS MATERIALIZED (
    SELECT server_started <> pg_postmaster_start_time() AS changed,
        CASE WHEN server_started <> pg_postmaster_start_time() OR :former::uuid IS NOT NULL
                 OR floor > fence_of_now()
        THEN 60 ELSE 0 END AS margin
    FROM fence_floor FOR UPDATE
), raised AS (
    UPDATE fence_floor f
    SET floor = greatest(f.floor + coalesce(was.changed, false)::integer, fence_of_now() + was.margin),
        before = greatest(f.before, clock_timestamp() + was.margin * interval '1 second'),
        server_started = pg_postmaster_start_time()
    FROM was
    RETURNING f.floor
), former AS MATERIALIZED (
    SELECT n.id FROM nodes n, raised
    WHERE n.state = 'active' AND (n.id = :former OR NOT is_this_server(n.server_started))
    FOR UPDATE OF n
), buried AS (
    UPDATE nodes n SET state = 'dead', epoch = n.epoch + 1 FROM former WHERE n.id = former.id
), places AS MATERIALIZED (
    SELECT p.partition FROM partitions p, was, (SELECT count(*) FROM former) AS after
    WHERE was.changed ORDER BY p.partition FOR UPDATE OF p
), epochs AS (
    UPDATE partitions p SET epoch = greatest(p.epoch + 1, raised.floor)
    FROM places, raised WHERE p.partition = places.partition
)
INSERT INTO nodes (id, name, url, version, server_started)
SELECT :node_id, :name, :url, :version, pg_postmaster_start_time() FROM raised
RETURNING epoch;

-- name: restore_fence
-- The same for an operator, who says that the database was set back. All nodes are declared dead: those
-- that run join again, and read everything anew. The minute is added only where the server is another one, or the
-- floor is ahead of the clock: else a second restore soon after would come back to what was issued.
WITH was AS MATERIALIZED (
    SELECT CASE WHEN server_started IS DISTINCT FROM pg_postmaster_start_time() OR floor > fence_of_now()
        THEN 60 ELSE 0 END AS margin
    FROM fence_floor FOR UPDATE
), raised AS (
    UPDATE fence_floor f
    SET floor = greatest(f.floor + 1, fence_of_now() + was.margin),
        before = greatest(f.before, clock_timestamp() + was.margin * interval '1 second')
    FROM was
    RETURNING f.floor, f.before
), former AS MATERIALIZED (
    SELECT n.id FROM nodes n, raised WHERE n.state = 'active' ORDER BY n.id FOR UPDATE OF n
), buried AS (
    UPDATE nodes n SET state = 'dead', epoch = n.epoch + 1 FROM former WHERE n.id = former.id
    RETURNING n.id
), places AS MATERIALIZED (
    SELECT p.partition FROM partitions p, (SELECT count(*) FROM former) AS after
    ORDER BY p.partition FOR UPDATE OF p
), epochs AS (
    UPDATE partitions p SET epoch = greatest(p.epoch + 1, raised.floor)
    FROM places, raised WHERE p.partition = places.partition
    RETURNING p.epoch
)
SELECT raised.floor, raised.before, (SELECT count(*) FROM buried) AS nodes,
    (SELECT max(epoch) FROM epochs) AS epoch
FROM raised;

-- name: database_time
SELECT extract(epoch FROM clock_timestamp())::float8 AS now;

-- name: beat
-- "I am alive": answers the time only to a node that nobody has declared dead, and that has joined this
-- very server. Beats that were counted cannot be fewer than before (:beats), unless the database was set back.
UPDATE nodes SET heartbeat_at = clock_timestamp(), beats = beats + 1
WHERE id = :node_id AND epoch = :epoch AND state = 'active' AND is_this_server(server_started) AND beats >= :beats
RETURNING extract(epoch FROM clock_timestamp())::float8 AS now, beats;

-- name: members
SELECT id, name, url, epoch,
    extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 AS silent
FROM nodes WHERE state = 'active' ORDER BY id;

-- name: ownership
SELECT owner, array_agg(partition ORDER BY partition) AS partitions
FROM partitions GROUP BY owner;

-- name: nodes
-- All that are remembered, for people: the dead and those who left too, for a while.
SELECT n.id, n.name, n.url, n.version, n.state, n.epoch, n.started_at,
    extract(epoch FROM clock_timestamp() - n.heartbeat_at)::float8 AS silent,
    (SELECT count(*) FROM partitions p WHERE p.owner = n.id) AS owned
FROM nodes n ORDER BY n.state, n.started_at DESC, n.id LIMIT :limit;

-- name: partitions
SELECT partition, owner, epoch FROM partitions ORDER BY partition;

-- name: declare_dead
-- Fence a silent node, and bury it once what it has in flight is done. The new epoch keeps it from
-- beginning anything; raising it waits for nobody, for it does not clash with the share locks that the
-- node's transactions hold. While there are such locks the node stays "active", and whoever looks next
-- tries again: none can have been added, so it comes to an end. FOR UPDATE gets through only when there
-- are none. Then it can change nothing any more, and its partitions may be taken.
WITH idle AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = :node_id FOR UPDATE SKIP LOCKED
)
UPDATE nodes n SET epoch = n.epoch + 1,
    state = CASE WHEN EXISTS (SELECT FROM idle) THEN 'dead' ELSE n.state END
WHERE n.id = :node_id AND n.state = 'active'
  AND n.heartbeat_at < clock_timestamp() - :ttl * interval '1 second'
RETURNING CASE WHEN n.state = 'dead' THEN n.id END;

-- name: take_over
-- Take partitions that nobody living owns. The node's own row proves that it is itself alive.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes
    WHERE id = :node_id AND epoch = :epoch AND state = 'active' AND beats >= :beats
      AND is_this_server(server_started)
    FOR KEY SHARE
), free AS MATERIALIZED (
    SELECT p.partition FROM partitions p
    WHERE p.partition = ANY (:partitions::smallint[])
      AND (p.owner IS NULL
           OR NOT EXISTS (SELECT FROM nodes o WHERE o.id = p.owner AND o.state = 'active'))
    ORDER BY p.partition FOR UPDATE
)
UPDATE partitions p SET owner = node.id, epoch = p.epoch + 1
FROM free, node WHERE p.partition = free.partition
RETURNING p.partition;

-- name: hand_over
-- Give partitions up. The new epoch makes every statement in flight that relied on them void;
-- FOR UPDATE waits for those that hold the row already.
WITH node AS MATERIALIZED (
    SELECT id, epoch FROM nodes WHERE id = :node_id AND epoch = :epoch AND beats >= :beats FOR UPDATE
), given AS (
    UPDATE partitions p SET owner = gift.heir, epoch = p.epoch + 1
    FROM unnest(:partitions::smallint[], :heirs::uuid[]) AS gift (partition, heir), node
    WHERE p.partition = gift.partition AND p.owner = node.id
)
UPDATE nodes n SET epoch = n.epoch + 1, state = :state FROM node WHERE n.id = node.id
RETURNING n.epoch;

-- name: standing
-- How schedules fare, for operators. It is enough to know that there are many.
SELECT count(*) FILTER (WHERE kind = 'overdue') AS overdue,
    min(wake_at) FILTER (WHERE kind = 'overdue') AS since,
    count(*) FILTER (WHERE kind = 'outdated') AS outdated
FROM (
    (SELECT 'overdue' AS kind, wake_at FROM schedules
     WHERE state = 'active' AND wake_at < now() - :overdue_after * interval '1 second'
     ORDER BY wake_at LIMIT 10000)
    UNION ALL
    (SELECT 'outdated', wake_at FROM schedules
     WHERE tzdata < :tzdata AND state <> 'ended' LIMIT 10000)
) found;

-- name: post_messages
WITH posted AS (
    INSERT INTO messages (node_id, body) SELECT * FROM unnest(:node_ids::uuid[], :bodies::bytea[])
    RETURNING node_id
)
SELECT pg_notify('mainspring', 'mail:' || node_id) FROM (SELECT DISTINCT node_id FROM posted) AS who;

-- name: collect_messages
DELETE FROM messages WHERE node_id = :node_id RETURNING id, body;

-- name: notify
-- A hint to look, for whoever listens.
SELECT pg_notify(:channel, :payload);

-- name: probe
-- Whether the connection still is one.
SELECT 1 AS alive;
