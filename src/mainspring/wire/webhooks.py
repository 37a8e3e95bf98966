"""Signing secrets and egress rules of webhooks, as admins send and read them."""

from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct

from mainspring.wire.tasks import DAY, Line, Time

Kind = Literal["hmac", "ed25519"]
SecretText = Annotated[str, Meta(min_length=1, max_length=200)]
Certificates = Annotated[
    str, Meta(min_length=1, max_length=100_000, extra_json_schema={"format": "pem-certificates"})
]
PrivateKey = Annotated[
    str, Meta(min_length=1, max_length=100_000, extra_json_schema={"format": "pem-private-key"})
]
Network = Annotated[str, Meta(max_length=50, extra_json_schema={"format": "ip-network"})]
Networks = Annotated[tuple[Network, ...], Meta(max_length=100)]


class SecretIn(Struct, forbid_unknown_fields=True):
    """A signing secret to make, or one to take over from elsewhere."""

    name: Line | None = None
    kind: Kind = "hmac"
    secret: SecretText | None = None


class RotateIn(Struct, forbid_unknown_fields=True):
    """How long the old secret signs beside the new one, in seconds."""

    overlap: Annotated[float, Meta(ge=0, le=30 * DAY)] = DAY
    secret: SecretText | None = None


class SecretOut(Struct):
    """A signing secret without the secret."""

    id: UUID
    name: str | None
    kind: str
    public_key: str | None
    created_at: Time
    expires_at: Time | None


class NewSecretOut(SecretOut):
    """A signing secret, shown this once."""

    secret: str


class RotatedOut(Struct):
    """The new secret, shown this once, and the old one with its end."""

    current: NewSecretOut
    previous: SecretOut


class SecretList(Struct):
    """The secrets that sign now."""

    items: list[SecretOut]


class EgressIn(Struct, forbid_unknown_fields=True):
    """What a tenant's webhooks may call beside the installation's rules, and its TLS identity."""

    allow: Networks = ()
    deny: Networks = ()
    ca: Certificates | None = None
    certificate: Certificates | None = None
    key: PrivateKey | None = None


class EgressOut(Struct):
    """The rules as they are; the client key is never shown."""

    allow: list[str]
    deny: list[str]
    ca: str | None
    certificate: str | None
