"""Signatures after Standard Webhooks: `v1` (HMAC-SHA256, `whsec_…`) and `v1a` (ed25519, `whsk_…`).

All live secrets of a tenant sign. While one is rotated there are two, and a receiver that knows
either of them accepts the message: nobody has to change both sides at the same moment.
"""

import hashlib
from base64 import b64decode, b64encode
from binascii import b2a_base64
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mainspring.domain.webhook import KeyKind, SigningKey

_PREFIXES: dict[KeyKind, str] = {"hmac": "whsec_", "ed25519": "whsk_"}
_PUBLIC = "whpk_"
_HMAC_SIZES = range(24, 65)
SECRET_SIZE = 32
"""Number of bytes of a new secret, and of any for ed25519."""
_BLOCK = 64

# Base64 has one way to write given bytes: what is left of the last character's bits is zero.
_B64, _B64_1, _B64_2 = "[A-Za-z0-9+/]", "[AQgw]==", "[AEIMQUYcgkosw048]="
SECRET_PATTERN = (
    rf"^(whsec_(({_B64}{{4}}){{8,20}}({_B64}{{4}}|{_B64}{_B64_1}|{_B64}{{2}}{_B64_2})?"
    rf"|({_B64}{{4}}){{21}}{_B64}{_B64_1})|whsk_({_B64}{{4}}){{10}}{_B64}{{2}}{_B64_2})$"
)
"""Secrets that `parse_secret` reads: 24 to 64 bytes for HMAC, 32 for ed25519."""

_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


def signature(keys: Iterable[SigningKey], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: one signature per key, separated by spaces."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return " ".join([_sign(key, signed) for key in keys])


def parse_secret(text: str) -> SigningKey:
    """Parse the text of a secret; ValueError says what is wrong without repeating it."""
    for kind, prefix in _PREFIXES.items():
        if text.startswith(prefix):
            return _checked(kind, _decoded(text.removeprefix(prefix)))
    raise ValueError("does not start with whsec_ (HMAC) or whsk_ (ed25519)")


def format_secret(key: SigningKey) -> str:
    """Return the text that `parse_secret` reads."""
    return _PREFIXES[key.kind] + b64encode(key.secret).decode()


def public_key(key: SigningKey) -> str | None:
    """Return what a receiver needs to verify ed25519 signatures; None for an HMAC secret."""
    if key.kind == "hmac":
        return None
    return _PUBLIC + b64encode(_private(key.secret).public_key().public_bytes_raw()).decode()


def _sign(key: SigningKey, signed: bytes) -> str:
    if key.kind == "hmac":
        return "v1," + b2a_base64(_hmac_sha256(key.secret, signed), newline=False).decode()
    return "v1a," + b64encode(_private(key.secret).sign(signed)).decode()


def _hmac_sha256(secret: bytes, message: bytes) -> bytes:
    """Return the HMAC, from two cached states. The library's own function releases the GIL each
    time, and getting it back from a busy sender thread took fifty times as long as the hashing."""
    keyed_inner, keyed_outer = _keyed_states(secret)
    inner, outer = keyed_inner.copy(), keyed_outer.copy()
    inner.update(message)
    outer.update(inner.digest())
    return outer.digest()


@lru_cache(maxsize=1024)
def _keyed_states(secret: bytes) -> "tuple[hashlib._Hash, hashlib._Hash]":
    block = secret.ljust(_BLOCK, b"\0")
    return sha256(block.translate(_INNER)), sha256(block.translate(_OUTER))


@lru_cache(maxsize=1024)
def _private(seed: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(seed)


def _decoded(text: str) -> bytes:
    try:
        secret = b64decode(text, validate=True)
    except ValueError:
        secret = b""
    if b64encode(secret).decode() != text:
        raise ValueError("is not valid base64 after its prefix")
    return secret


def _checked(kind: KeyKind, secret: bytes) -> SigningKey:
    if kind == "hmac" and len(secret) not in _HMAC_SIZES:
        raise ValueError("must hold 24 to 64 bytes")
    if kind == "ed25519" and len(secret) != SECRET_SIZE:
        raise ValueError("must hold 32 bytes")
    return SigningKey(kind, secret)
