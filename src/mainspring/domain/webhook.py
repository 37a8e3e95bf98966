"""What a tenant brings to its outgoing webhooks: signing keys, egress rules, a TLS identity."""

from dataclasses import dataclass, field
from typing import Literal

KeyKind = Literal["hmac", "ed25519"]


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A live secret that signs webhooks. Its bytes stay out of every repr, log and traceback."""

    kind: KeyKind
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """The authorities that a tenant trusts, and its own certificate: PEM texts, all optional."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WebhookProfile:
    """Everything that sending for one tenant depends on."""

    keys: tuple[SigningKey, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    tls: TlsIdentity | None = None
