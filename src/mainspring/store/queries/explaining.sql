-- For `explain`: what surrounds a task, where its owner is another node.

-- name: waiting_task
-- An unfinished task as its owner sees it, with what else decides about its start.
SELECT w.tenant_id, w.id, w.rev, w.partition, w.state, w.queue, w.capability, w.concurrency_key,
    w.concurrency_limit, w.priority, w.due, w.expires, w.fence, w.lease_end, w.cancel_requested,
    w.worker, w.incarnation, w.waited, t.attempts, n.max_running / n.spread AS tenant_limit,
    s.needed - s.finished AS open, s.needed, s.state = 'expanded' AS has_items,
    r.state = 'paused' AS run_paused,
    CASE WHEN s.state = 'blocked' THEN ARRAY(
        SELECT p.step FROM workflow_steps p
        WHERE p.tenant_id = s.tenant_id AND p.run_id = s.run_id AND p.item = -1 AND s.step = ANY (p.children)
          AND p.state IN ('blocked', 'released', 'expanded')
        ORDER BY p.step LIMIT 10) END AS open_steps
FROM window_rows w
JOIN tasks t ON t.tenant_id = w.tenant_id AND t.id = w.id
JOIN tenants n ON n.id = w.tenant_id
LEFT JOIN workflow_steps s ON s.tenant_id = t.tenant_id AND s.run_id = t.workflow_run_id
    AND s.task_id = t.id AND t.state = 'blocked'
LEFT JOIN workflow_runs r ON r.tenant_id = s.tenant_id AND r.id = s.run_id
WHERE w.tenant_id = :tenant_id AND w.id = :task_id;

-- name: running_beside
-- What of a tenant runs in a partition, and under a key; at most :scan rows are looked at.
WITH due AS MATERIALIZED (
    SELECT tenant_id, state, concurrency_key FROM tasks
    WHERE partition = :partition AND NOT parked AND due_at <= clock_timestamp()
    ORDER BY due_at LIMIT :scan
)
SELECT count(*) AS running, count(*) FILTER (WHERE concurrency_key = :concurrency_key) AS under_key
FROM due WHERE tenant_id = :tenant_id AND state = 'running';
