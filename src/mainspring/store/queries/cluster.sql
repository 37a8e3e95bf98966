-- Nodes, partitions and the moves between them.

-- name: join_cluster
INSERT INTO nodes (id, name, url, version) VALUES ($1, $2, $3, $4)
RETURNING epoch;

-- name: beat
-- "I am alive": answers the epoch only to a node that nobody has declared dead.
UPDATE nodes SET heartbeat_at = clock_timestamp()
WHERE id = $1 AND epoch = $2 AND state = 'active'
RETURNING extract(epoch FROM clock_timestamp())::float8 AS now;

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
FROM nodes n ORDER BY n.state, n.started_at DESC, n.id LIMIT $1;

-- name: partitions
SELECT partition, owner, epoch FROM partitions ORDER BY partition;

-- name: declare_dead
-- Fence a silent node, and bury it once what it has in flight is done. The new epoch keeps it from
-- beginning anything; raising it waits for nobody, for it does not clash with the share locks that the
-- node's transactions hold. While there are such locks the node stays "active", and whoever looks next
-- tries again: none can have been added, so it comes to an end. FOR UPDATE gets through only when there
-- are none. Then it can change nothing any more, and its partitions may be taken.
WITH idle AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = $1 FOR UPDATE SKIP LOCKED
)
UPDATE nodes n SET epoch = n.epoch + 1,
    state = CASE WHEN EXISTS (SELECT FROM idle) THEN 'dead' ELSE n.state END
WHERE n.id = $1 AND n.state = 'active'
  AND n.heartbeat_at < clock_timestamp() - $2 * interval '1 second'
RETURNING CASE WHEN n.state = 'dead' THEN n.id END;

-- name: take_over
-- Take partitions that nobody living owns. The node's own row proves that it is itself alive.
WITH node AS MATERIALIZED (
    SELECT id FROM nodes WHERE id = $1 AND epoch = $2 AND state = 'active' FOR KEY SHARE
), free AS MATERIALIZED (
    SELECT p.partition FROM partitions p
    WHERE p.partition = ANY ($3::smallint[])
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
    SELECT id, epoch FROM nodes WHERE id = $1 AND epoch = $2 FOR UPDATE
), given AS (
    UPDATE partitions p SET owner = gift.heir, epoch = p.epoch + 1
    FROM unnest($3::smallint[], $4::uuid[]) AS gift (partition, heir), node
    WHERE p.partition = gift.partition AND p.owner = node.id
)
UPDATE nodes n SET epoch = n.epoch + 1, state = $5 FROM node WHERE n.id = node.id
RETURNING n.epoch;

-- name: standing
-- How schedules fare, for operators. It is enough to know that there are many.
SELECT count(*) FILTER (WHERE kind = 'overdue') AS overdue,
    min(wake_at) FILTER (WHERE kind = 'overdue') AS since,
    count(*) FILTER (WHERE kind = 'outdated') AS outdated
FROM (
    (SELECT 'overdue' AS kind, wake_at FROM schedules
     WHERE state = 'active' AND wake_at < now() - $1 * interval '1 second'
     ORDER BY wake_at LIMIT 10000)
    UNION ALL
    (SELECT 'outdated', wake_at FROM schedules
     WHERE tzdata < $2 AND state <> 'ended' LIMIT 10000)
) found;
