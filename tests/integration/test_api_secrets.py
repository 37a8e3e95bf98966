"""Signing secrets, and operators' rules for a tenant's egress: what is taken, and what is not."""

import re
from base64 import b64encode
from contextlib import suppress

import pytest

from mainspring.execution.signing import SECRET_PATTERN, parse_secret
from mainspring.store.vault import Vault
from support.identities import Authority
from support.in_process_api import InProcessApi

HMAC = "whsec_" + b64encode(bytes(range(32))).decode()
ED25519 = "whsk_" + b64encode(bytes(range(32))).decode()


@pytest.fixture
def api_vault() -> Vault:
    return Vault(b"k" * 32)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


async def test_a_secret_from_elsewhere_is_taken_over(api: InProcessApi) -> None:
    for secret, kind in ((HMAC, "hmac"), (ED25519, "ed25519")):
        made = await api.admin.post("/v1/secrets", {"secret": secret})
        assert (made.status, made.json()["kind"], made.json()["secret"]) == (201, kind, secret)
        assert made.headers["cache-control"] == "no-store"
        listed = await api.admin.get("/v1/secrets")
        assert secret.encode() not in listed.body


NONE = (
    "",
    "hunter2",
    "whsec_",
    "whsec_" + b64encode(bytes(23)).decode(),
    "whsec_" + b64encode(bytes(65)).decode(),
    HMAC.rstrip("="),
    HMAC + "==",
    HMAC[:-2] + "9=",
    HMAC + "\n",
    "whsec_\u00e9" + HMAC,
    "whsk_" + b64encode(bytes(31)).decode(),
    "whsk_" + b64encode(bytes(33)).decode(),
)


async def test_a_secret_that_is_none_is_refused(api: InProcessApi) -> None:
    for secret in NONE:
        answer = await api.admin.post("/v1/secrets", {"secret": secret})
        assert (answer.status, answer.pointers()) == (422, ["/secret"]), secret
        assert not secret or secret.encode() not in answer.body


def test_the_pattern_takes_what_the_parser_takes() -> None:
    """The document shows the pattern; the parser decides."""
    for size in range(20, 70):
        for prefix in ("whsec_", "whsk_"):
            text = prefix + b64encode(b"\xff" * size).decode()
            assert (re.fullmatch(SECRET_PATTERN, text) is not None) == takes(text), text
    assert not any(
        re.match(SECRET_PATTERN, text) or takes(text) for text in NONE if "\n" not in text
    )


def takes(text: str) -> bool:
    with suppress(ValueError):
        return bool(parse_secret(text))
    return False


async def test_a_successor_is_of_the_same_kind(api: InProcessApi) -> None:
    made = (await api.admin.post("/v1/secrets", {})).json()
    url = f"/v1/secrets/{made['id']}/rotate"
    other = await api.admin.post(url, {"secret": ED25519})
    assert (other.status, other.pointers()) == (422, ["/secret"])
    assert (await api.admin.post(url, {"secret": HMAC})).status == 201
    assert (await api.admin.post(url)).status == 409


# --- egress --------------------------------------------------------------------------------------


def egress(api: InProcessApi) -> str:
    return f"/v1/tenants/{api.tenants['a']}/egress"


async def test_rules_are_replaced_whole(api: InProcessApi, authority: Authority) -> None:
    own = authority.identity("tenant")
    rules = {
        "allow": ["10.20.0.0/16"],
        "deny": ["10.20.7.7"],
        "ca": authority.pem.decode(),
        "certificate": own.certificate.decode(),
    }
    put = await api.operator.call("PUT", egress(api), {**rules, "key": own.key.decode()})
    assert (put.status, put.json()) == (200, rules)
    assert (await api.operator.get(egress(api))).json() == rules
    nothing: dict[str, object] = {"allow": [], "deny": [], "ca": None, "certificate": None}
    assert (await api.operator.call("PUT", egress(api), {})).json() == nothing
    assert (await api.operator.get(egress(api))).json() == nothing


async def test_what_a_sender_could_not_use_is_refused(
    api: InProcessApi, authority: Authority
) -> None:
    own, other = authority.identity("tenant"), authority.identity("other")
    certificate, key = own.certificate.decode(), own.key.decode()
    for body, pointers in (
        ({"allow": ["10.0.0.1/8"], "deny": ["everything", "10.0.0.0/8"]}, ["/allow/0", "/deny/0"]),
        ({"ca": "-----BEGIN CERTIFICATE-----"}, ["/ca"]),
        ({"ca": key}, ["/ca"]),
        ({"ca": authority.pem.decode() + "\0"}, ["/ca"]),
        ({"certificate": certificate}, ["/key"]),
        ({"key": key}, ["/key"]),
        ({"certificate": key, "key": certificate}, ["/certificate", "/key"]),
        ({"certificate": certificate, "key": other.key.decode()}, ["/key"]),
        ({"certificate": certificate, "key": "\0"}, ["/key"]),
    ):
        answer = await api.operator.call("PUT", egress(api), body)
        assert (answer.status, answer.pointers()) == (422, pointers), body


async def test_a_tenant_that_is_not_there_has_no_rules(api: InProcessApi) -> None:
    for tenant in ("0", "999999", "2147483648", "-1", "x", "9" * 30):
        for method in ("GET", "PUT"):
            answer = await api.operator.call(method, f"/v1/tenants/{tenant}/egress", {})
            assert answer.status == 404, answer.body
