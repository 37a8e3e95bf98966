"""/v1/tenants/{id}/egress: what a tenant's webhooks may call, and their TLS identity.

The settings are used much later, by a sender that can only fail: so they are tried on arrival.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import OperatorCall
from mainspring.api.http.problems import raise_if
from mainspring.api.views import view
from mainspring.errors import Problem
from mainspring.store.secrets import EgressSettings, SecretStore
from mainspring.wire.webhooks import EgressIn, EgressOut


@dataclass(frozen=True, slots=True)
class EgressResource:
    """The rules of one tenant, read and replaced."""

    store: SecretStore
    changed: Callable[[int], None]

    async def read(self, call: OperatorCall) -> Response:
        return _shown(call.found(await self.store.settings(call.tenant_id)))

    async def change(self, call: OperatorCall) -> Response:
        tenant_id = call.tenant_id
        wanted = decode_as(EgressIn, await call.body())
        raise_if(list(_problems(wanted)))
        settings = EgressSettings(
            list(wanted.allow), list(wanted.deny), wanted.ca, wanted.certificate
        )
        key = None if wanted.key is None else wanted.key.encode()
        if not await self.store.put_settings(tenant_id, settings, key, call.actor):
            raise call.no_such_tenant()
        self.changed(tenant_id)
        return _shown(settings)


def _shown(settings: EgressSettings) -> Response:
    return json_response(view(EgressOut, settings))


def _problems(wanted: EgressIn) -> Iterator[Problem]:
    for field, texts in (("allow", wanted.allow), ("deny", wanted.deny)):
        for index, text in enumerate(texts):
            if not _is_network(text):
                yield Problem(f"/{field}/{index}", "is not an address or a network")
    if wanted.ca is not None and not _certificates(wanted.ca):
        yield Problem("/ca", "holds no certificate in PEM form")
    if (wanted.certificate is None) != (wanted.key is None):
        yield Problem("/key", "a certificate and its key go together")
    elif wanted.certificate is not None and wanted.key is not None:
        yield from _identity_problems(wanted.certificate, wanted.key)


def _identity_problems(certificate: str, key: str) -> Iterator[Problem]:
    """Yield the problems of a chain, the tenant's own certificate first, and of its key."""
    chain, private = _certificates(certificate), _private_key(key)
    if not chain:
        yield Problem("/certificate", "holds no certificate in PEM form")
    if private is None:
        yield Problem("/key", "holds no private key in PEM form without a password")
    if chain and private is not None and chain[0].public_key() != private.public_key():
        yield Problem("/key", "is not the key of the certificate")


def _certificates(text: str) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        return []
    # What stands around the certificates is of no matter, but the database cannot keep a NUL.
    return [] if "\0" in text else found


def _private_key(text: str) -> PrivateKeyTypes | None:
    try:
        return load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True
