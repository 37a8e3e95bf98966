-- Dead letters that can be replayed, answers to every kind of POST, and the effect log.
-- Way back: DROP TABLE effects; ALTER TABLE idempotency_keys DROP COLUMN headers; ALTER TABLE tasks
-- and task_history DROP COLUMN replay_of; DROP INDEX dead_letters_unresolved, dead_letters_resolved;
-- ALTER TABLE dead_letters DROP the columns added below; DROP FUNCTION error_fingerprint.
-- Older nodes run beside this schema: they name their columns, and all new ones may be empty.

-- A task that was made to run a dead letter again says which.
ALTER TABLE tasks ADD COLUMN replay_of uuid;
ALTER TABLE task_history ADD COLUMN replay_of uuid;

-- What errors of one kind have in common: the code and the message without ids and numbers.
CREATE FUNCTION error_fingerprint(reason text, error jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT left(encode(sha256(convert_to(
        coalesce(error ->> 'code', reason) || ':' || regexp_replace(regexp_replace(regexp_replace(
            lower(left(coalesce(error ->> 'message', ''), 1000)),
            '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}', '#', 'g'),
            '\m(0x[0-9a-f]+|[0-9a-f]{8,})\M', '#', 'g'),
            '[0-9]+', '#', 'g'),
        'UTF8')), 'hex'), 16)
$$;

-- The rest of the task, so that a dead letter shows it whole after history has gone. A fingerprint
-- that the database computes is also there for letters of older nodes.
ALTER TABLE dead_letters
    ADD COLUMN replayed_as uuid,
    ADD COLUMN created_at  timestamptz,
    ADD COLUMN run_at      timestamptz,
    ADD COLUMN due_at      timestamptz,
    ADD COLUMN expires_at  timestamptz,
    ADD COLUMN picked_at   timestamptz,
    ADD COLUMN started_at  timestamptz,
    ADD COLUMN rev         integer,
    ADD COLUMN fence       integer,
    ADD COLUMN sla_met     boolean,
    ADD COLUMN blame       text,
    ADD COLUMN lateness    jsonb,
    ADD COLUMN result      bytea,
    ADD COLUMN replay_of   uuid,
    ADD COLUMN fingerprint text GENERATED ALWAYS AS (error_fingerprint(reason, final_error)) STORED,
    ADD CONSTRAINT replayed_has_successor CHECK (
        replayed_as IS NULL OR resolution IS NOT DISTINCT FROM 'replayed');

-- Both in the order of lists; what is asked for most, the unresolved, stays small.
CREATE INDEX dead_letters_unresolved ON dead_letters (tenant_id, id) WHERE resolved_at IS NULL;
CREATE INDEX dead_letters_resolved ON dead_letters (tenant_id, id) WHERE resolved_at IS NOT NULL;

-- Answers other than a new task carry headers of their own. A status of 0 means that the first
-- request is still being served: the answer is then its token, and expires_at the end of its turn.
ALTER TABLE idempotency_keys ADD COLUMN headers jsonb;

-- The effect log: who did something first, and what came of it.
CREATE TABLE effects (
    tenant_id  integer NOT NULL,
    key        text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    answer     bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key)
);
CREATE INDEX effects_expiry ON effects (expires_at);
