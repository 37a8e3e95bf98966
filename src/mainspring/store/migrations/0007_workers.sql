-- Workers: who they are, what they hold, what they log; messages between nodes; enqueueing in SQL.
-- Way back: DROP SCHEMA mainspring CASCADE; DROP TABLE task_logs, worker_leases, workers,
-- enqueue_roles, messages; DROP VIEW window_rows and make it as it was; ALTER TABLE tasks DROP COLUMN
-- incarnation, DROP COLUMN losses, DROP COLUMN progress. Older nodes run beside this schema: they
-- name their columns, and to them tasks of workers are tasks that nobody there can run.

ALTER TABLE tasks
    -- Which run of the worker's process holds the task; empty while a node's own executor does.
    ADD COLUMN incarnation text,
    -- How often it was lost together with its worker since its last report.
    ADD COLUMN losses      smallint NOT NULL DEFAULT 0,
    -- What its worker said last: JSON, as it came.
    ADD COLUMN progress    bytea;

CREATE OR REPLACE VIEW window_rows AS
SELECT tenant_id, id, rev, partition, state, queue, capability, concurrency_key, concurrency_limit,
    priority, extract(epoch FROM due_at)::float8 AS due, extract(epoch FROM expires_at)::float8 AS expires,
    fence, extract(epoch FROM lease_until)::float8 AS lease_end, cancel_requested, due_at, parked,
    worker, incarnation
FROM tasks;

CREATE TABLE workers (
    tenant_id   integer NOT NULL,
    name        text NOT NULL,
    incarnation text NOT NULL,
    -- Incarnations that were replaced: whoever comes with one of these has been given up.
    former      text[] NOT NULL DEFAULT '{}',
    offer       jsonb NOT NULL,
    about       jsonb NOT NULL DEFAULT '{}',
    leased      bigint NOT NULL DEFAULT 0,
    succeeded   bigint NOT NULL DEFAULT 0,
    failed      bigint NOT NULL DEFAULT 0,
    released    bigint NOT NULL DEFAULT 0,
    seq         bigint GENERATED ALWAYS AS IDENTITY,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, name)
) WITH (fillfactor = 50);
CREATE INDEX workers_seq ON workers (tenant_id, seq);

-- How many tasks a worker holds in the partitions of a node.
CREATE UNLOGGED TABLE worker_leases (
    tenant_id integer NOT NULL,
    name      text NOT NULL,
    node_id   uuid NOT NULL,
    held      integer NOT NULL,
    PRIMARY KEY (tenant_id, name, node_id)
) WITH (fillfactor = 50);

-- What nodes tell each other beside hints. All of it may be lost.
CREATE UNLOGGED TABLE messages (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id uuid NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    body    bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX messages_node ON messages (node_id, id);

CREATE TABLE task_logs (
    tenant_id integer NOT NULL,
    task_id   uuid NOT NULL,
    fence     integer NOT NULL,
    seq       bigint GENERATED ALWAYS AS IDENTITY,
    at        timestamptz NOT NULL,
    logged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    level     text NOT NULL,
    message   text NOT NULL,
    PRIMARY KEY (tenant_id, task_id, seq, logged_at)
) PARTITION BY RANGE (logged_at);

CREATE TABLE task_logs_default PARTITION OF task_logs DEFAULT;

-- Enqueueing from a caller's own transaction -------------------------------------------------------

-- Which database roles may enqueue for which tenants.
CREATE TABLE enqueue_roles (
    role      name NOT NULL,
    tenant_id integer NOT NULL,
    PRIMARY KEY (role, tenant_id)
);

CREATE SCHEMA IF NOT EXISTS mainspring;

-- The tenant for which the session's role may enqueue. Of several the caller has to name one; who
-- owns the tables may name any.
CREATE FUNCTION mainspring.tenant_of_session(named text) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
DECLARE
    wanted integer;
    allowed integer[];
    owner oid := (SELECT relowner FROM pg_class WHERE oid = 'tables_of_mainspring.tasks'::regclass);
BEGIN
    IF named IS NOT NULL THEN
        SELECT id INTO wanted FROM tables_of_mainspring.tenants WHERE name = named;
        IF pg_has_role(session_user, owner, 'MEMBER') AND wanted IS NOT NULL THEN
            RETURN wanted;
        END IF;
    END IF;
    SELECT array_agg(DISTINCT r.tenant_id) INTO allowed
    FROM tables_of_mainspring.enqueue_roles r JOIN pg_roles p ON p.rolname = r.role
    WHERE pg_has_role(session_user, p.oid, 'MEMBER');
    IF named IS NULL AND cardinality(allowed) = 1 THEN
        RETURN allowed[1];
    ELSIF named IS NOT NULL AND wanted = ANY (allowed) THEN
        RETURN wanted;
    END IF;
    -- The same words whether the tenant exists or not.
    RAISE EXCEPTION 'role % may not enqueue%', session_user,
        CASE WHEN named IS NULL THEN ' without naming a tenant' ELSE ' for this tenant' END
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'An operator allows it by SELECT mainspring.allow_enqueue(role, tenant).';
END $$;

-- Whether valid JSON is nested beyond 64 levels, as the API finds it: with all but the brackets gone,
-- each pass that removes the innermost pairs takes one level.
CREATE FUNCTION mainspring.nested_too_deeply(document text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    brackets text;
BEGIN
    IF length(translate(document, '[{', '')) >= length(document) - 64 THEN
        RETURN false;
    END IF;
    brackets := regexp_replace(regexp_replace(document, '"(?:[^"\\]|\\.)*"', '', 'g'), '[^][{}]', '', 'g');
    brackets := translate(brackets, '{}', '[]');
    FOR level IN 1..64 LOOP
        brackets := replace(brackets, '[]', '');
        EXIT WHEN brackets = '';
    END LOOP;
    RETURN brackets <> '';
END $$;

-- Create a task in the caller's transaction: it is there when that commits, and never was when that
-- is undone. Validates what the API validates of a task of this kind.
CREATE FUNCTION mainspring.enqueue(
    handler           text DEFAULT NULL,
    payload           jsonb DEFAULT '{}',
    target            jsonb DEFAULT NULL,
    run_at            timestamptz DEFAULT NULL,
    delay             interval DEFAULT NULL,
    queue             text DEFAULT 'default',
    priority          integer DEFAULT 5,
    name              text DEFAULT NULL,
    timeout           double precision DEFAULT 30,
    sla               double precision DEFAULT 30,
    max_attempts      integer DEFAULT 5,
    retry_initial     double precision DEFAULT 10,
    labels            jsonb DEFAULT NULL,
    tags              text[] DEFAULT '{}',
    concurrency_key   text DEFAULT NULL,
    concurrency_limit integer DEFAULT 1,
    expires_at        timestamptz DEFAULT NULL,
    tenant            text DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    now_at constant timestamptz := clock_timestamp();
    due constant timestamptz := coalesce(run_at, now_at + coalesce(delay, interval '0'));
    whose constant integer := mainspring.tenant_of_session(tenant);
    kind text;
    word text;
    new_id uuid;
    bytes bytea := uuid_send(gen_random_uuid());
    place smallint;
    home uuid;
    per_key constant integer := CASE WHEN concurrency_key IS NULL THEN NULL ELSE concurrency_limit END;
    problem text;
BEGIN
    IF (handler IS NULL) = (target IS NULL) THEN
        RAISE EXCEPTION 'give either a handler or a target' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    target := coalesce(target, jsonb_build_object('type', 'handler', 'name', handler));
    kind := target ->> 'type';
    problem := CASE
        WHEN run_at IS NOT NULL AND delay IS NOT NULL THEN 'give either run_at or delay'
        WHEN payload IS NULL THEN 'payload is null'
        WHEN octet_length(payload::text) > 1048576 THEN 'payload has more than 1048576 bytes'
        WHEN mainspring.nested_too_deeply(payload::text) THEN 'payload is nested more than 64 levels deep'
        WHEN due > now_at + interval '36600 days' OR due < to_timestamp(0) THEN 'run_at is out of range'
        WHEN expires_at <= due THEN 'expires_at is not after the time the task is due'
        WHEN queue IS NULL OR queue !~ '^[A-Za-z0-9_.-]{1,100}$' THEN 'queue is not valid'
        WHEN priority IS NULL OR priority NOT BETWEEN 0 AND 9 THEN 'priority is not between 0 and 9'
        WHEN name IS NOT NULL AND (name = '' OR length(name) > 200 OR name ~ '[[:cntrl:]]')
            THEN 'name is not valid'
        WHEN timeout IS NULL OR NOT (timeout > 0 AND timeout <= 86400) THEN 'timeout is out of range'
        WHEN sla IS NULL OR NOT (sla >= 0 AND sla <= 31536000) THEN 'sla is out of range'
        WHEN max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 1000
            THEN 'max_attempts is not between 1 and 1000'
        WHEN retry_initial IS NULL OR NOT (retry_initial >= 0 AND retry_initial <= 2592000)
            THEN 'retry_initial is out of range'
        WHEN labels IS NOT NULL AND (jsonb_typeof(labels) <> 'object' OR EXISTS (
            SELECT FROM jsonb_each(labels) l
            WHERE jsonb_typeof(l.value) <> 'string' OR l.key ~ '[[:cntrl:]:]' OR l.key = ''
               OR length(l.key) > 100 OR length(l.value #>> '{}') > 500))
            THEN 'labels is not an object of texts'
        WHEN tags IS NULL OR EXISTS (SELECT FROM unnest(tags) t
                                     WHERE t IS NULL OR t !~ '^[A-Za-z0-9_.-]{1,200}$')
            THEN 'tags are not valid'
        WHEN concurrency_key IS NOT NULL AND (concurrency_key = '' OR length(concurrency_key) > 200
            OR concurrency_key ~ '[[:cntrl:]]') THEN 'concurrency_key is not valid'
        WHEN concurrency_key IS NOT NULL AND coalesce(concurrency_limit, 0) < 1
            THEN 'concurrency_limit is not positive'
        WHEN kind = 'handler' AND (coalesce(target ->> 'name', '')
            !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}$' OR target - 'type' - 'name' <> '{}')
            THEN 'target is not a handler with a valid name'
        WHEN kind = 'command' AND (jsonb_typeof(target -> 'argv') IS DISTINCT FROM 'array'
            OR target - 'type' - 'argv' <> '{}' OR jsonb_array_length(target -> 'argv') NOT BETWEEN 1 AND 1000
            OR jsonb_path_exists(target, '$.argv[*] ? (@.type() != "string")'))
            THEN 'target is not a command with argv'
        WHEN kind = 'http' AND (coalesce(target ->> 'url', '') !~* '^https?://[^[:space:][:cntrl:]]+$'
            OR length(target ->> 'url') > 2048 OR target - 'type' - 'url' - 'method' <> '{}'
            OR coalesce(target ->> 'method', 'POST') NOT IN ('GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD'))
            THEN 'target is not http with a url and a method'
        WHEN kind IS NULL OR kind NOT IN ('handler', 'command', 'http') THEN 'target has no known type'
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF kind = 'http' THEN
        target := target || jsonb_build_object('method', coalesce(target ->> 'method', 'POST'));
    END IF;
    word := CASE kind WHEN 'handler' THEN 'handler:' || (target ->> 'name') ELSE kind END;
    IF kind <> 'http' AND word NOT LIKE 'handler:mainspring.%' THEN
        word := word || coalesce((SELECT string_agg(DISTINCT ';tag=' || t, '') FROM unnest(tags) t), '');
    END IF;
    -- A UUIDv7: the time in milliseconds, then chance.
    bytes := overlay(bytes PLACING substring(int8send(floor(extract(epoch FROM now_at) * 1000)::bigint)
        FROM 3) FROM 1 FOR 6);
    new_id := encode(set_byte(bytes, 6, get_byte(bytes, 6) & 15 | 112), 'hex')::uuid;
    -- A change of the tenant's spread waits for this transaction, as it does for the API's.
    SELECT tables_of_mainspring.partition_of(t.id, new_id, enqueue.concurrency_key, t.spread)
    INTO STRICT place FROM tables_of_mainspring.tenants t WHERE t.id = whose FOR KEY SHARE;
    INSERT INTO tables_of_mainspring.tasks (id, created_at, run_at, due_at, expires_at, tenant_id,
        concurrency_limit, partition, priority, queue, capability, concurrency_key, name, labels, spec, payload)
    VALUES (new_id, now_at, due, due, enqueue.expires_at, whose, per_key,
        place, enqueue.priority, enqueue.queue, word, enqueue.concurrency_key, enqueue.name,
        nullif(enqueue.labels, '{}'),
        convert_to(jsonb_build_object('target', target, 'timeout', timeout, 'sla', sla, 'jitter', 0,
            'retry', jsonb_build_object('max_attempts', max_attempts, 'initial', retry_initial),
            'requires', CASE WHEN cardinality(tags) > 0 THEN jsonb_build_object('tags', to_jsonb(tags)) END
            )::text, 'UTF8'),
        convert_to(enqueue.payload::text, 'UTF8'));
    -- Always, however far away it is due: nobody knows when the transaction will commit.
    INSERT INTO tables_of_mainspring.wakes (partition, tenant_id, task_id) VALUES (place, whose, new_id);
    SELECT p.owner INTO home FROM tables_of_mainspring.partitions p WHERE p.partition = place;
    IF home IS NOT NULL THEN
        PERFORM pg_notify('mainspring', home::text);
    END IF;
    RETURN new_id;
END $$;

-- Let a role enqueue for a tenant: for operators, who own the tables.
CREATE FUNCTION mainspring.allow_enqueue(role name, tenant text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tables_of_mainspring.enqueue_roles (role, tenant_id)
    SELECT allow_enqueue.role, t.id FROM tables_of_mainspring.tenants t WHERE t.name = allow_enqueue.tenant
    ON CONFLICT DO NOTHING;
    IF NOT EXISTS (SELECT FROM tables_of_mainspring.tenants t WHERE t.name = allow_enqueue.tenant) THEN
        RAISE EXCEPTION 'there is no tenant %', quote_literal(tenant) USING ERRCODE = 'no_data_found';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA mainspring TO %I', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION mainspring.enqueue TO %I', role);
END $$;

-- Where the tables are is settled here and now, by name: a caller's search_path decides nothing, and
-- neither does what somebody else may have created beside the tables.
DO $$
DECLARE
    made regprocedure;
    tables constant text := (SELECT quote_ident(n.nspname) FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'tasks'::regclass);
BEGIN
    FOR made IN SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = 'mainspring'::regnamespace
          AND p.proname IN ('tenant_of_session', 'enqueue', 'allow_enqueue', 'nested_too_deeply')
    LOOP
        EXECUTE replace(pg_get_functiondef(made), 'tables_of_mainspring.', tables || '.');
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', made);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', made);
    END LOOP;
END $$;
