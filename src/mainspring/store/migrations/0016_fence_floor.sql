-- Fences that no restore repeats. A database that was set back, by a restore or by a failover to a replica
-- that lagged behind, would issue fences again that workers and receivers have seen. So tasks that were
-- created before a node joined are leased with fences from a floor on, which follows the clock. And a node
-- notes the server that it joined: after a restart, a restore or a failover its beliefs may be wrong, and
-- nothing that it says counts until it has joined again.
-- Way back: DROP FUNCTION is_this_server; DROP TABLE fence_floor; ALTER TABLE nodes DROP COLUMN
-- server_started, DROP COLUMN beats. Older nodes run beside this schema: their rows name no server and are
-- taken as before; the fences that they issue are above those that a task has had, but not above the floor.

CREATE TABLE fence_floor (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    floor          integer NOT NULL,
    before         timestamptz NOT NULL,
    server_started timestamptz
);
INSERT INTO fence_floor (floor, before) VALUES (0, '-infinity');

ALTER TABLE nodes ADD COLUMN server_started timestamptz, ADD COLUMN beats bigint NOT NULL DEFAULT 0;

-- Whether the server that a node joined is the one that answers now. Older nodes do not say.
CREATE FUNCTION is_this_server(started timestamptz) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce(started, pg_postmaster_start_time()) = pg_postmaster_start_time();

-- The least fence that no life of this database can have issued: the seconds that have gone by, in whole
-- ones and beyond the present. They fit until 2088.
CREATE FUNCTION fence_of_now() RETURNS integer LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN least(2000000000,
    ceil(extract(epoch FROM clock_timestamp() - timestamptz '2025-01-01 00:00:00+00')) + 1)::integer;
