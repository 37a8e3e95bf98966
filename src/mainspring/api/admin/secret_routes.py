"""The routes of signing secrets, and of what a tenant's webhooks may call."""

from mainspring.api.admin.egress import EgressResource
from mainspring.api.admin.secrets import SecretResource
from mainspring.api.openapi.operation import (
    GONE,
    REPLAYED,
    TENANT_ID,
    Body,
    ResponseDoc,
    never,
    without,
)
from mainspring.api.routes import Routes, Tag, links_by, ok
from mainspring.errors import Conflict
from mainspring.execution.signing import SECRET_PATTERN
from mainspring.store.vault import NoKey
from mainspring.wire.webhooks import (
    EgressIn,
    EgressOut,
    NewSecretOut,
    RotatedOut,
    RotateIn,
    SecretIn,
    SecretList,
)

_WEBHOOKS = Tag("Webhooks")
_SECRET = {"anyOf": [{"type": "string", "pattern": SECRET_PATTERN}, {"type": "null"}]}
_RULES = {name: {"properties": {"secret": _SECRET}} for name in ("SecretIn", "RotateIn")}
_IDENTITY = {"EgressIn": never(without("certificate", "key"), without("key", "certificate"))}


def secret_routes(secrets: SecretResource) -> Routes:
    links = links_by(
        "id", rotate=("rotateSecret", "replace it"), delete=("deleteSecret", "end it")
    )  # fmt: skip
    return {
        "GET /v1/secrets": _WEBHOOKS.tenant(
            "admin", secrets.list, "listSecrets", "List signing secrets",
            "Those that sign now. The secrets themselves are not shown.",
            ok("The live secrets.", SecretList),
        ),
        "POST /v1/secrets": _WEBHOOKS.tenant(
            "admin", secrets.create, "createSecret", "Make a signing secret",
            "The secret is in the answer and nowhere else afterwards. One that is taken over from "
            "elsewhere says by its prefix which kind it is: `whsec_` HMAC, `whsk_` ed25519.",
            ResponseDoc(201, "The new secret.", NewSecretOut, [REPLAYED], links=links),
            body=Body(SecretIn, examples={"new": {"name": "main"}}, required=False, rules=_RULES),
            problems=[Conflict, NoKey], secret=True,
        ),
        "DELETE /v1/secrets/{id}": _WEBHOOKS.tenant(
            "admin", secrets.delete, "deleteSecret", "Delete a signing secret",
            "It signs nothing any more.",
            GONE,
        ),
        "POST /v1/secrets/{id}/rotate": _WEBHOOKS.tenant(
            "admin", secrets.rotate, "rotateSecret", "Replace a signing secret",
            "Both sign until the old one ends, `overlap` seconds from now. The new one is of the "
            "same kind.",
            ResponseDoc(201, "The new secret and the old one.", RotatedOut, [REPLAYED]),
            body=Body(RotateIn, examples={"a day": {"overlap": 86400}}, required=False),
            problems=[Conflict, NoKey], secret=True,
        ),
    }  # fmt: skip


def egress_routes(egress: EgressResource) -> Routes:
    office = {"office": {"allow": ["10.20.0.0/16"]}}
    return {
        "GET /v1/tenants/{id}/egress": _WEBHOOKS.operator(
            egress.read, "readEgress", "Read a tenant's egress rules", "",
            ok("The rules.", EgressOut), params=[TENANT_ID],
        ),
        "PUT /v1/tenants/{id}/egress": _WEBHOOKS.operator(
            egress.change, "changeEgress", "Replace a tenant's egress rules and TLS identity",
            "Networks that its webhooks may call, or may not, beside the installation's rules. "
            "`ca` holds the authorities it trusts; `certificate` (its own first) and `key` go "
            "together.",
            ok("The rules.", EgressOut), params=[TENANT_ID],
            body=Body(EgressIn, examples=office, rules=_IDENTITY), problems=[NoKey],
        ),
    }  # fmt: skip
