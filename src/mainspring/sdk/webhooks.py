"""Verify webhooks that Mainspring sent: Standard Webhooks, with the standard library alone.

    from mainspring.sdk.webhooks import verify

    if not verify("whsec_…", request.headers, request.body, now=time.time()):
        return 401

For ed25519 (`whpk_…`), which the Standard Webhooks libraries do not verify yet, use the package
`cryptography`: docs/webhooks.md shows how.
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping

TOLERANCE = 300.0
"""Seconds by which a message may be older or newer than now: beyond that it may be a replay."""


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether the message was signed with this secret, and lately. Header names in any case."""
    found = {name.lower(): value for name, value in headers.items()}
    timestamp = found.get("webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit()) or len(timestamp) > 12:
        return False
    if abs(now - int(timestamp)) > TOLERANCE:
        return False
    signed = f"{found.get('webhook-id', '')}.{timestamp}.".encode() + body
    try:
        key = b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        return False
    wanted = b"v1," + b64encode(hmac.digest(key, signed, "sha256"))
    given = found.get("webhook-signature", "").encode("utf-8", "replace").split()
    return any(hmac.compare_digest(wanted, each) for each in given)
