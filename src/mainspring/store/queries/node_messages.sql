-- Messages between nodes.

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
