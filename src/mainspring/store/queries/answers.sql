-- First answers: under idempotency keys, and in the effect log. New tasks store theirs in the very
-- statement that creates them (create_tasks); all other requests take a turn first.

-- name: take_turn
-- Become the one request under a key that is served now. Nothing comes back when another one is,
-- or was. A turn that was never ended (its node died) runs out by itself.
INSERT INTO idempotency_keys AS k (tenant_id, key, body_hash, status, answer, expires_at)
VALUES (:tenant_id, :key, :body_hash, 0, :token, clock_timestamp() + :lease * interval '1 second')
ON CONFLICT (tenant_id, key) DO UPDATE
    SET body_hash = excluded.body_hash, status = 0, answer = excluded.answer, headers = NULL,
        expires_at = excluded.expires_at
    WHERE k.expires_at <= clock_timestamp()
RETURNING key;

-- name: keep_answer
-- End a turn with an answer. The token says whose turn it was.
UPDATE idempotency_keys
SET status = :status, answer = :answer, headers = :headers, expires_at = clock_timestamp() + :ttl * interval '1 second'
WHERE tenant_id = :tenant_id AND key = :key AND status = 0 AND answer = :token
RETURNING key;

-- name: give_up_turn
DELETE FROM idempotency_keys WHERE tenant_id = :tenant_id AND key = :key AND status = 0 AND answer = :token;

-- name: find_answer
-- The first answer under a key; status 0 while there is none yet.
SELECT body_hash, status, answer AS body, headers FROM idempotency_keys
WHERE tenant_id = :tenant_id AND key = :key AND expires_at > clock_timestamp();

-- name: note_effect
-- Be the first to tell of an effect; nothing comes back when somebody was before.
INSERT INTO effects AS e (tenant_id, key, answer, expires_at)
VALUES (:tenant_id, :key, :answer, clock_timestamp() + :ttl * interval '1 second')
ON CONFLICT (tenant_id, key) DO UPDATE
    SET answer = excluded.answer, created_at = clock_timestamp(), expires_at = excluded.expires_at
    WHERE e.expires_at <= clock_timestamp()
RETURNING answer, created_at;

-- name: find_effect
SELECT answer, created_at FROM effects
WHERE tenant_id = :tenant_id AND key = :key AND expires_at > clock_timestamp();
