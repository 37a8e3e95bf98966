"""Signatures, judged by an independent implementation of Standard Webhooks."""

from base64 import b64decode, b64encode
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook, WebhookVerificationError

from mainspring.domain.webhook import SigningKey
from mainspring.execution.signing import format_secret, parse_secret, public_key, signature
from mainspring.sdk.webhooks import verify
from support.docs import ROOT, blocks

BODY = b'{"user": 7}'
NEW = SigningKey("hmac", b"n" * 32)
OLD = SigningKey("hmac", b"o" * 24)
ED = SigningKey("ed25519", b"e" * 32)


def _headers(*keys: SigningKey, at: int | None = None, body: bytes = BODY) -> dict[str, str]:
    timestamp = at or int(datetime.now(UTC).timestamp())
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(keys, "msg_1", timestamp, body),
    }


def test_the_reference_implementation_verifies_us() -> None:
    assert Webhook(format_secret(NEW)).verify(BODY, _headers(NEW)) == {"user": 7}


@pytest.mark.parametrize("known", [NEW, OLD])
def test_during_a_rotation_either_secret_verifies(known: SigningKey) -> None:
    headers = _headers(NEW, OLD)
    assert len(headers["webhook-signature"].split()) == 2
    assert Webhook(format_secret(known)).verify(BODY, headers) == {"user": 7}
    now = float(headers["webhook-timestamp"])
    assert verify(format_secret(known), headers, BODY, now)


def test_after_a_rotation_the_old_secret_no_longer_verifies() -> None:
    with pytest.raises(WebhookVerificationError):
        Webhook(format_secret(OLD)).verify(BODY, _headers(NEW))


def test_an_ed25519_signature_is_one_the_public_key_accepts() -> None:
    headers = _headers(ED, NEW)
    version, _, signed = headers["webhook-signature"].split()[0].partition(",")
    assert version == "v1a"
    public = public_key(ED)
    assert public is not None
    assert public.startswith("whpk_")
    key = Ed25519PublicKey.from_public_bytes(b64decode(public.removeprefix("whpk_")))
    key.verify(b64decode(signed), f"msg_1.{headers['webhook-timestamp']}.".encode() + BODY)
    assert Webhook(format_secret(NEW)).verify(BODY, headers)  # the other one still counts


def test_the_documented_way_verifies_ed25519() -> None:
    (block,) = [b for b in blocks(ROOT / "docs" / "webhooks.md") if "verify_ed25519" in b.text]
    shown: dict[str, Any] = {}
    exec(block.text, shown)
    verified = shown["verify_ed25519"]
    other = SigningKey("ed25519", b"o" * 32)
    headers, public = _headers(ED, NEW, at=1_800_000_000), public_key(ED)
    assert verified(public, headers, BODY, 1_800_000_000)
    assert verified(public, _headers(other, ED, at=1_800_000_000), BODY, 1_800_000_000)
    assert not verified(public_key(other), headers, BODY, 1_800_000_000)
    assert not verified(public, headers, BODY + b" ", 1_800_000_000)
    assert not verified(public, headers, BODY, 1_800_000_301)
    assert not verified(public, {**headers, "webhook-id": "msg_2"}, BODY, 1_800_000_000)
    assert not verified(public, {**headers, "webhook-signature": "v1a,?"}, BODY, 1_800_000_000)
    assert not verified(public, _headers(NEW, at=1_800_000_000), BODY, 1_800_000_000)
    assert not verified(public, {}, BODY, 1_800_000_000)


def test_our_verifier_refuses_what_was_changed_or_is_old() -> None:
    headers = _headers(NEW, at=1_800_000_000)
    secret = format_secret(NEW)
    assert verify(secret, headers, BODY, 1_800_000_000)
    assert not verify(secret, headers, BODY + b" ", 1_800_000_000)
    assert not verify(secret, headers, BODY, 1_800_000_301)
    assert not verify(secret, {**headers, "webhook-id": "msg_2"}, BODY, 1_800_000_000)
    assert not verify(secret, {**headers, "webhook-timestamp": "soon"}, BODY, 1_800_000_000)
    assert not verify("whsec_!", headers, BODY, 1_800_000_000)
    assert not verify(secret, {}, BODY, 1_800_000_000)


@pytest.mark.parametrize("key", [NEW, OLD, ED])
def test_secrets_survive_being_written_down(key: SigningKey) -> None:
    assert parse_secret(format_secret(key)) == key
    assert "nnnn" not in repr(key)


@pytest.mark.parametrize(
    "text",
    [
        *("", "whsec_", "whsec_!!!!", "secret", "whsk_" + b64encode(b"x" * 31).decode()),
        "whsec_" + b64encode(b"x" * 23).decode(),
        "whsec_" + b64encode(b"x" * 65).decode(),
    ],
)
def test_bad_secrets_are_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(does|is|must)") as caught:
        parse_secret(text)
    assert len(text) < 8 or text not in str(caught.value)
