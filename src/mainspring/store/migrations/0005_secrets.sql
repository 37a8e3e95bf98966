-- Webhook signing secrets, and what else a tenant's webhooks depend on.
-- Way back: DROP TABLE webhook_secrets, webhook_settings.
-- Older nodes run beside this schema: they do not know these tables.

-- A secret signs while it has not ended. During a rotation two are live.
CREATE TABLE webhook_secrets (
    tenant_id  integer NOT NULL,
    id         uuid NOT NULL,
    name       text,
    kind       text NOT NULL CHECK (kind IN ('hmac', 'ed25519')),
    -- Ciphertext; the key that opens it is in no table.
    sealed     text NOT NULL,
    public_key text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    PRIMARY KEY (tenant_id, id)
);

-- Rules of egress beside the installation's own, and the tenant's TLS identity (its key sealed).
CREATE TABLE webhook_settings (
    tenant_id   integer PRIMARY KEY,
    allow       text[] NOT NULL DEFAULT '{}',
    deny        text[] NOT NULL DEFAULT '{}',
    ca          text,
    certificate text,
    sealed_key  text,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((certificate IS NULL) = (sealed_key IS NULL))
);
