"""The routes of signing secrets, and of what a tenant's webhooks may call."""

from mainspring.api.admin.egress import EgressResource
from mainspring.api.admin.secrets import SecretResource
from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, created_without_path, links_by, ok
from mainspring.errors import Conflict
from mainspring.execution.signing import SECRET_PATTERN
from mainspring.store.vault import NoKey
from mainspring.wire import webhooks as wire

_WEBHOOKS = Tag("Webhooks")
_SECRET = {"anyOf": [{"type": "string", "pattern": SECRET_PATTERN}, {"type": "null"}]}
_RULES = {name: {"properties": {"secret": _SECRET}} for name in ("SecretIn", "RotateIn")}
_HALF = (docs.without("certificate", "key"), docs.without("key", "certificate"))
_TOGETHER = {"EgressIn": docs.never(*_HALF)}


def secret_routes(secrets: SecretResource) -> Routes:
    links = links_by("id", rotate=("rotateSecret", "replace it"), delete=("deleteSecret", "end it"))
    new, a_day = {"new": {"name": "main"}}, {"a day": {"overlap": 86400}}
    return {
        "GET /v1/secrets": _WEBHOOKS.tenant(
            "admin", secrets.list, "listSecrets", "List signing secrets",
            "Those that sign now. The secrets themselves are not shown.",
            ok("The live secrets.", wire.SecretList),
        ),
        "POST /v1/secrets": _WEBHOOKS.tenant(
            "admin", secrets.create, "createSecret", "Make a signing secret",
            "The secret is in the answer and nowhere else afterwards. One that is taken over from "
            "elsewhere says by its prefix which kind it is: `whsec_` HMAC, `whsk_` ed25519.",
            created_without_path("The new secret.", wire.NewSecretOut, links=links),
            body=docs.Body(wire.SecretIn, examples=new, required=False, rules=_RULES),
            problems=[Conflict, NoKey], secret=True,
        ),
        "DELETE /v1/secrets/{id}": _WEBHOOKS.delete(
            "admin", secrets.delete, "Secret", "a signing secret", "It signs nothing any more."
        ),
        "POST /v1/secrets/{id}/rotate": _WEBHOOKS.tenant(
            "admin", secrets.rotate, "rotateSecret", "Replace a signing secret",
            "Both sign until the old one ends, `overlap` seconds from now. The new one is of the "
            "same kind.",
            created_without_path("The new secret and the old one.", wire.RotatedOut),
            body=docs.Body(wire.RotateIn, examples=a_day, required=False),
            problems=[Conflict, NoKey], secret=True,
        ),
    }  # fmt: skip


def egress_routes(egress: EgressResource) -> Routes:
    office = {"office": {"allow": ["10.20.0.0/16"]}}
    return {
        "GET /v1/tenants/{id}/egress": _WEBHOOKS.operator(
            egress.read, "readEgress", "Read a tenant's egress rules", "",
            ok("The rules.", wire.EgressOut), params=[docs.TENANT_ID],
        ),
        "PUT /v1/tenants/{id}/egress": _WEBHOOKS.operator(
            egress.change, "changeEgress", "Replace a tenant's egress rules and TLS identity",
            "Networks that its webhooks may call, or may not, beside the installation's rules. "
            "`ca` holds the authorities it trusts; `certificate` (its own first) and `key` go "
            "together.",
            ok("The rules.", wire.EgressOut), params=[docs.TENANT_ID], problems=[NoKey],
            body=docs.Body(wire.EgressIn, examples=office, rules=_TOGETHER),
        ),
    }  # fmt: skip
