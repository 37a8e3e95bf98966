"""The vault: seals secrets before they reach a table and opens them for those who must use them.

AES-256-GCM under a key from the configuration. The ciphertext names its key, so that several can be
in use while `mainspring secrets rotate` moves everything to the newest. What a ciphertext is for is
bound into it: a signing secret cannot be passed off as a header.
"""

import secrets
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mainspring.errors import Conflict, MainspringError

TARGET_HEADERS = "target-headers"
SIGNING_SECRET = "signing-secret"
CLIENT_KEY = "client-key"

_VERSION = "s1"
_KEY_SIZE = 32
_NONCE_SIZE = 12


class Unreadable(MainspringError):
    """A ciphertext cannot be opened: its key is gone, or somebody changed it."""

    code = "secret-unreadable"


class NoKey(Conflict):
    """Secrets cannot be kept, because the installation has no key to seal them with."""

    code = "no-secrets-key"


class Vault:
    """Ciphers of the present key and of those before it; without any, all calls fail."""

    def __init__(self, key: bytes | None = None, old_keys: tuple[bytes, ...] = ()) -> None:
        self._current = None if key is None else _key_id(key)
        keys = [*old_keys, *([] if key is None else [key])]
        self._ciphers = {_key_id(each): AESGCM(each) for each in keys}

    def seal(self, purpose: str, secret: bytes) -> str:
        """Return the ciphertext under the present key."""
        if self._current is None:
            raise NoKey("secrets cannot be kept: this installation has no secrets_key")
        nonce = secrets.token_bytes(_NONCE_SIZE)
        sealed = nonce + self._ciphers[self._current].encrypt(nonce, secret, purpose.encode())
        return f"{_VERSION}.{self._current}.{urlsafe_b64encode(sealed).decode()}"

    def open(self, purpose: str, sealed: str) -> bytes:
        """Return the secret; Unreadable says why that fails, without a hint of it."""
        version, _, rest = sealed.partition(".")
        key_id, _, text = rest.partition(".")
        cipher = self._ciphers.get(key_id)
        if version != _VERSION or cipher is None:
            raise Unreadable(f"a secret was sealed with a key that is not configured ({key_id})")
        try:
            data = urlsafe_b64decode(text)
            return cipher.decrypt(data[:_NONCE_SIZE], data[_NONCE_SIZE:], purpose.encode())
        except (InvalidTag, ValueError):
            raise Unreadable("a secret was damaged or changed since it was sealed") from None

    def renewed(self, purpose: str, sealed: str) -> str | None:
        """Return the same secret under the present key; None when it is there already."""
        if sealed.startswith(f"{_VERSION}.{self._current}."):
            return None
        return self.seal(purpose, self.open(purpose, sealed))

    def seal_headers(self, headers: Mapping[str, str]) -> str:
        return self.seal(TARGET_HEADERS, msgspec.json.encode(dict(headers)))

    def open_headers(self, sealed: str) -> dict[str, str]:
        return msgspec.json.decode(self.open(TARGET_HEADERS, sealed), type=dict[str, str])


def parse_key(text: str) -> bytes:
    """Return a configured key: 32 bytes in base64 or hex. ValueError does not repeat it."""
    for decode in (bytes.fromhex, lambda t: b64decode(t, altchars=b"-_", validate=True), b64decode):
        try:
            key = decode(text.strip())
        except ValueError:
            continue
        if len(key) == _KEY_SIZE:
            return key
    raise ValueError("is not 32 bytes in base64 or hex; make one with `openssl rand -base64 32`")


def _key_id(key: bytes) -> str:
    return sha256(b"mainspring key id" + key).hexdigest()[:8]
