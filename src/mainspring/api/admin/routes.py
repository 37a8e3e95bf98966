"""The routes of admins and operators: keys, tenants, the audit log, the cluster, health, signing
secrets, and what a tenant's webhooks may call."""

from mainspring.api.admin.egress import EgressResource
from mainspring.api.admin.installation import AuditResource, ClusterResource
from mainspring.api.admin.keys import LONGEST_GRACE, LONGEST_LIFE, KeyResource
from mainspring.api.admin.operations import OPEN_METRICS, PLAIN, Alive, Operations, Ready
from mainspring.api.admin.secrets import SecretResource
from mainspring.api.admin.tenants import TenantResource
from mainspring.api.http.operations import OpenOperation, OperatorOperation, TenantOperation
from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, created, created_without_path, links_by, ok
from mainspring.errors import Conflict, NotReady
from mainspring.execution.signing import SECRET_PATTERN
from mainspring.store.vault import NoKey
from mainspring.wire import admin as wire
from mainspring.wire import webhooks

_KEYS = Tag("Keys")
_TENANTS = Tag("Tenants")
_OPERATIONS = Tag("Operations")
_EXPIRES_IN = {"expires_in": docs.span(LONGEST_LIFE)}
_GRACE = {"grace": docs.span(LONGEST_GRACE, zero=True, null=False)}
_EXPIRY = docs.never(*docs.several("expires_at", "expires_in"))
_KEY_RULES = {
    "KeyIn": {**_EXPIRY, "properties": _EXPIRES_IN},
    "RotationIn": {**_EXPIRY, "properties": {**_EXPIRES_IN, **_GRACE}},
}
_KEY_ID = docs.Param("id", str, "The key's id.", "path")
_KEY_LINKS = links_by(
    "id",
    read=("getKey", "read it again"),
    rotate=("rotateKey", "replace it"),
    revoke=("revokeKey", "end it"),
)
_NEW_KEY = created("The new key.", wire.NewKeyOut, links=_KEY_LINKS)
_TENANT_LINKS = links_by(
    "id",
    read=("getTenant", "read it again"),
    edit=("editTenant", "change its limits"),
    delete=("deleteTenant", "let it go"),
)
_WEBHOOKS = Tag("Webhooks")
_SECRET = {"anyOf": [{"type": "string", "pattern": SECRET_PATTERN}, {"type": "null"}]}
_SECRET_RULES = {name: {"properties": {"secret": _SECRET}} for name in ("SecretIn", "RotateIn")}
_HALF = (docs.without("certificate", "key"), docs.without("key", "certificate"))
_TOGETHER = {"EgressIn": docs.never(*_HALF)}


def key_routes(keys: KeyResource) -> Routes:
    an_hour = {"an hour": {"grace": "PT1H"}}
    return {
        "GET /v1/keys": _KEYS.tenant(
            "admin", keys.page, "listKeys", "List keys",
            "Newest first, those that have ended too, without secrets.",
            ok("A page of keys.", wire.KeyPage), params=docs.NUMBERED,
        ),
        "POST /v1/keys": _create_key(keys),
        "GET /v1/keys/{id}": _KEYS.tenant(
            "admin", keys.one, "getKey", "Read a key",
            "`last_used_at` is written down about once a minute.",
            ok("The key, without its secret.", wire.KeyOut), params=[_KEY_ID],
        ),
        "DELETE /v1/keys/{id}": _KEYS.tenant(
            "admin", keys.revoke, "revokeKey", "Revoke a key",
            "It is refused at once by this node and within five seconds by every other. Revoking "
            "a key again is harmless; revoking one's own is allowed.",
            docs.ResponseDoc(204, "It has ended."), params=[_KEY_ID],
        ),
        "POST /v1/keys/{id}/rotate": _KEYS.tenant(
            "admin", keys.rotate, "rotateKey", "Replace a key",
            "Makes a new key with the same name and scopes. The old one stays valid for `grace` "
            "(a day, unless you say otherwise). The new one lives as long as the old one was made "
            "for, unless `expires_at` or `expires_in` says otherwise.",
            _NEW_KEY, params=[_KEY_ID],
            body=docs.Body(wire.RotationIn, examples=an_hour, required=False), problems=[Conflict],
            secret=True,
        ),
    }  # fmt: skip


def _create_key(keys: KeyResource) -> TenantOperation:
    examples = {
        "worker": {"name": "worker-7", "scopes": ["work"]},
        "for a week": {"scopes": ["read"], "expires_in": "P7D"},
    }
    return _KEYS.tenant(
        "admin", keys.create, "createKey", "Make a key",
        "The answer shows the secret, `api_key`, this once: only its hash is kept. A key belongs "
        "to the tenant of the key that made it. Without `expires_at` or `expires_in` it lives "
        "until it is revoked.",
        _NEW_KEY, body=docs.Body(wire.KeyIn, examples=examples, rules=_KEY_RULES),
        problems=[Conflict], secret=True,
    )  # fmt: skip


def installation_routes(audit: AuditResource, cluster: ClusterResource) -> Routes:
    doc = _OPERATIONS.doc(
        "listAudit", "Read the audit log",
        "Who changed what, newest first: keys, limits, purges. A tenant's key reads the tenant's "
        "entries; an operator's key that belongs to no tenant reads all there are. A page may be "
        "short, or even empty, and still have a `next_cursor`.",
        ok("A page of entries.", wire.AuditPage),
        params=[
            docs.Param("action", docs.AnyText, "Only entries of this action, like `key.revoked`."),
            docs.Param("actor", docs.AnyText, "Only entries by this actor, like `key:1b7R…`."),
            docs.Param("subject", docs.AnyText, "Only entries about this thing, by its id."),
            *docs.NUMBERED,
        ],
    )  # fmt: skip
    return {
        "GET /v1/audit": TenantOperation("admin", audit.page, doc, or_operators=audit.page_of_all),
        "GET /v1/cluster": _OPERATIONS.operator(
            cluster.show, "getCluster", "Read the cluster",
            "Its nodes, also the dead ones for an hour, who owns which partition, the version of "
            "the tz database, and how many schedules stand undecided.",
            ok("The cluster.", wire.ClusterOut),
        ),
    }  # fmt: skip


def tenant_routes(tenants: TenantResource) -> Routes:
    plain = {"plain": {"name": "growth"}, "limited": {"name": "ads", "max_running": 50}}
    changes = {"limit": {"max_running": 20}, "weight": {"weight": 3}}
    return {
        "GET /v1/limits": _TENANTS.tenant(
            "admin", tenants.limits, "getLimits", "Read the tenant's own limits",
            "And how much of them is used now. Operators change them, through the tenant. Of a "
            "tenant with more than 50,000 unfinished tasks the oldest are looked at: "
            "`running_at_least` says that more may be running.",
            ok("The limits.", wire.LimitsOut),
        ),
        "GET /v1/tenants": _TENANTS.operator(
            tenants.page, "listTenants", "List tenants", "Newest first.",
            ok("A page of tenants.", wire.TenantPage), params=docs.NUMBERED,
        ),
        "POST /v1/tenants": _TENANTS.operator(
            tenants.create, "createTenant", "Make a tenant",
            "With a first key that has all scopes; its secret, `api_key`, is shown this once. A "
            "tenant with `max_running` is gathered in `spread` partitions (1 unless you say "
            "otherwise), each of which gets an equal share of the limit.",
            created("The new tenant.", wire.NewTenantOut, links=_TENANT_LINKS),
            body=docs.Body(wire.TenantIn, examples=plain), problems=[Conflict], secret=True,
        ),
        "GET /v1/tenants/{id}": _TENANTS.operator(
            tenants.one, "getTenant", "Read a tenant", "",
            ok("The tenant.", wire.TenantOut), params=[docs.TENANT_ID],
        ),
        "PATCH /v1/tenants/{id}": _TENANTS.operator(
            tenants.edit, "editTenant", "Change a tenant's weight and limits",
            "Its tasks move to the partitions that follow from the new spread.",
            ok("The tenant as it is now.", wire.TenantOut), params=[docs.TENANT_ID],
            body=docs.Body(wire.TenantPatch, examples=changes),
        ),
        "DELETE /v1/tenants/{id}": _delete_tenant(tenants),
    }  # fmt: skip


def _delete_tenant(tenants: TenantResource) -> OperatorOperation:
    return _TENANTS.operator(
        tenants.delete, "deleteTenant", "Let a tenant go",
        "Only when it has no unfinished tasks. Its keys end at once; its history and all else it "
        "owned is removed within minutes. The audit log is kept.",
        docs.GONE, params=[docs.TENANT_ID], problems=[Conflict],
    )  # fmt: skip


def health_routes(operations: Operations) -> Routes:
    healthz = _OPERATIONS.doc(
        "healthz", "Is the process alive?",
        "Says nothing about the database: restart the process only when this fails, or when "
        "there is no answer. It fails for ten seconds after the process stood still for a while.",
        ok("It is.", Alive), problems=[NotReady],
    )  # fmt: skip
    readyz = _OPERATIONS.doc(
        "readyz", "Is the node ready for requests?", "", ok("It is.", Ready), problems=[NotReady]
    )
    return {
        "GET /healthz": OpenOperation(operations.healthz, healthz),
        "GET /readyz": OpenOperation(operations.readyz, readyz),
        "GET /metrics": _OPERATIONS.operator(
            operations.metrics, "metrics", "Read the metrics",
            "In Prometheus' text format, or in that of OpenMetrics for who prefers it.",
            docs.ResponseDoc(200, "All values.", str, media_type=PLAIN),
            docs.ResponseDoc(200, "All values.", str, media_type=OPEN_METRICS),
        ),
    }  # fmt: skip


def secret_routes(secrets: SecretResource) -> Routes:
    links = links_by("id", rotate=("rotateSecret", "replace it"), delete=("deleteSecret", "end it"))
    new, a_day = {"new": {"name": "main"}}, {"a day": {"overlap": 86400}}
    return {
        "GET /v1/secrets": _WEBHOOKS.tenant(
            "admin", secrets.list, "listSecrets", "List signing secrets",
            "Those that sign now. The secrets themselves are not shown.",
            ok("The live secrets.", webhooks.SecretList),
        ),
        "POST /v1/secrets": _WEBHOOKS.tenant(
            "admin", secrets.create, "createSecret", "Make a signing secret",
            "The secret is in the answer and nowhere else afterwards. One that is taken over from "
            "elsewhere says by its prefix which kind it is: `whsec_` HMAC, `whsk_` ed25519.",
            created_without_path("The new secret.", webhooks.NewSecretOut, links=links),
            body=docs.Body(webhooks.SecretIn, examples=new, required=False, rules=_SECRET_RULES),
            problems=[Conflict, NoKey], secret=True,
        ),
        "DELETE /v1/secrets/{id}": _WEBHOOKS.tenant(
            "admin", secrets.delete, "deleteSecret", "Delete a signing secret",
            "It signs nothing any more.", docs.GONE,
        ),
        "POST /v1/secrets/{id}/rotate": _WEBHOOKS.tenant(
            "admin", secrets.rotate, "rotateSecret", "Replace a signing secret",
            "Both sign until the old one ends, `overlap` seconds from now. The new one is of the "
            "same kind.",
            created_without_path("The new secret and the old one.", webhooks.RotatedOut),
            body=docs.Body(webhooks.RotateIn, examples=a_day, required=False),
            problems=[Conflict, NoKey], secret=True,
        ),
    }  # fmt: skip


def egress_routes(egress: EgressResource) -> Routes:
    office = {"office": {"allow": ["10.20.0.0/16"]}}
    return {
        "GET /v1/tenants/{id}/egress": _WEBHOOKS.operator(
            egress.read, "readEgress", "Read a tenant's egress rules", "",
            ok("The rules.", webhooks.EgressOut), params=[docs.TENANT_ID],
        ),
        "PUT /v1/tenants/{id}/egress": _WEBHOOKS.operator(
            egress.change, "changeEgress", "Replace a tenant's egress rules and TLS identity",
            "Networks that its webhooks may call, or may not, beside the installation's rules. "
            "`ca` holds the authorities it trusts; `certificate` (its own first) and `key` go "
            "together.",
            ok("The rules.", webhooks.EgressOut), params=[docs.TENANT_ID], problems=[NoKey],
            body=docs.Body(webhooks.EgressIn, examples=office, rules=_TOGETHER),
        ),
    }  # fmt: skip
