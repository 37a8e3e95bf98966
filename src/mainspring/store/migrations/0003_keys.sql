-- Keys with a life: seen in use, shown by their beginning, and listed in order. Tenants that leave.
-- Way back: ALTER TABLE api_keys DROP COLUMN prefix, DROP COLUMN last_used_at, DROP COLUMN seq;
-- DROP TABLE departed_tenants. Older nodes run beside this schema: they name their columns.

ALTER TABLE api_keys
    ADD COLUMN prefix       text,
    ADD COLUMN last_used_at timestamptz,
    -- The order of creation, for pages: ids are random.
    ADD COLUMN seq          bigint GENERATED ALWAYS AS IDENTITY;

CREATE INDEX api_keys_tenant ON api_keys (tenant_id, seq);

-- A tenant is gone at once, what it left behind is cleared in small steps afterwards. Ids of
-- tenants are never used again, so nobody can come upon the remains meanwhile.
CREATE TABLE departed_tenants (
    tenant_id   integer PRIMARY KEY,
    departed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
