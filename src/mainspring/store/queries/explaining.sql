-- For `explain`: what surrounds a task, where its owner is another node.

-- name: waiting_task
-- An unfinished task as its owner sees it, with what else decides about its start.
SELECT w.tenant_id, w.id, w.rev, w.partition, w.state, w.queue, w.capability, w.concurrency_key,
    w.concurrency_limit, w.priority, w.due, w.expires, w.fence, w.lease_end, w.cancel_requested,
    w.worker, w.incarnation, t.attempts, n.max_running / n.spread AS tenant_limit
FROM window_rows w
JOIN tasks t ON t.tenant_id = w.tenant_id AND t.id = w.id
JOIN tenants n ON n.id = w.tenant_id
WHERE w.tenant_id = $1 AND w.id = $2;

-- name: crowd
-- What of a tenant runs in a partition, and under a key; at most $4 rows are looked at.
WITH due AS MATERIALIZED (
    SELECT tenant_id, state, concurrency_key FROM tasks
    WHERE partition = $1 AND NOT parked AND due_at <= clock_timestamp()
    ORDER BY due_at LIMIT $4
)
SELECT count(*) AS running, count(*) FILTER (WHERE concurrency_key = $3) AS under_key
FROM due WHERE tenant_id = $2 AND state = 'running';
