"""The operations of admins and operators, in words and types."""

from mainspring.api.admin.keys import LONGEST_GRACE, LONGEST_LIFE
from mainspring.api.openapi.operation import (
    GONE,
    LIMIT,
    LOCATION,
    NUMBER_CURSOR,
    REPLAYED,
    TENANT_ID,
    AnyText,
    Body,
    Doc,
    Link,
    Param,
    ResponseDoc,
    never,
    several,
    span,
)
from mainspring.errors import Conflict
from mainspring.wire.admin import (
    AuditPage,
    ClusterOut,
    KeyIn,
    KeyOut,
    KeyPage,
    LimitsOut,
    NewKeyOut,
    NewTenantOut,
    RotationIn,
    TenantIn,
    TenantOut,
    TenantPage,
    TenantPatch,
)

KEYS = "Keys"
TENANTS = "Tenants"
INSTALLATION = "Operations"

_EXPIRES_IN = {"expires_in": span(LONGEST_LIFE)}
_GRACE = {"grace": span(LONGEST_GRACE, zero=True, null=False)}
_EXPIRY = never(*several("expires_at", "expires_in"))
_KEY_ID = Param("id", str, "The key's id.", "path", required=True)
_KEY_LINKS = {
    "read": Link("getKey", {"id": "$response.body#/id"}, "read it again"),
    "rotate": Link("rotateKey", {"id": "$response.body#/id"}, "replace it"),
    "revoke": Link("revokeKey", {"id": "$response.body#/id"}, "end it"),
}
_TENANT_LINKS = {
    "read": Link("getTenant", {"id": "$response.body#/id"}, "read it again"),
    "edit": Link("editTenant", {"id": "$response.body#/id"}, "change its limits"),
    "delete": Link("deleteTenant", {"id": "$response.body#/id"}, "let it go"),
}

CREATE_KEY = Doc(
    id="createKey",
    tag=KEYS,
    summary="Make a key",
    description="The answer shows the secret, `api_key`, this once: only its hash is kept. A key "
    "belongs to the tenant of the key that made it. Without `expires_at` or `expires_in` it lives "
    "until it is revoked.",
    bodies=[
        Body(
            KeyIn,
            examples={
                "worker": {"name": "worker-7", "scopes": ["work"]},
                "for a week": {"scopes": ["read"], "expires_in": "P7D"},
            },
            rules={"KeyIn": {**_EXPIRY, "properties": _EXPIRES_IN}},
        )
    ],
    replies=[ResponseDoc(201, "The new key.", NewKeyOut, [LOCATION, REPLAYED], links=_KEY_LINKS)],
    problems=[Conflict],
)

LIST_KEYS = Doc(
    id="listKeys",
    tag=KEYS,
    summary="List keys",
    description="Newest first, those that have ended too, without secrets.",
    params=[LIMIT, NUMBER_CURSOR],
    replies=[ResponseDoc(200, "A page of keys.", KeyPage)],
)

READ_KEY = Doc(
    id="getKey",
    tag=KEYS,
    summary="Read a key",
    description="`last_used_at` is written down about once a minute.",
    params=[_KEY_ID],
    replies=[ResponseDoc(200, "The key, without its secret.", KeyOut)],
)

REVOKE_KEY = Doc(
    id="revokeKey",
    tag=KEYS,
    summary="Revoke a key",
    description="It is refused at once by this node and within five seconds by every other. "
    "Revoking a key again is harmless; revoking one's own is allowed.",
    params=[_KEY_ID],
    replies=[ResponseDoc(204, "It has ended.")],
)

ROTATE_KEY = Doc(
    id="rotateKey",
    tag=KEYS,
    summary="Replace a key",
    description="Makes a new key with the same name and scopes. The old one stays valid for "
    "`grace` (a day, unless you say otherwise). The new one lives as long as the old one was made "
    "for, unless `expires_at` or `expires_in` says otherwise.",
    params=[_KEY_ID],
    bodies=[
        Body(
            RotationIn,
            examples={"an hour": {"grace": "PT1H"}},
            required=False,
            rules={"RotationIn": {**_EXPIRY, "properties": {**_EXPIRES_IN, **_GRACE}}},
        )
    ],
    replies=[ResponseDoc(201, "The new key.", NewKeyOut, [LOCATION, REPLAYED], links=_KEY_LINKS)],
    problems=[Conflict],
)

CREATE_TENANT = Doc(
    id="createTenant",
    tag=TENANTS,
    summary="Make a tenant",
    description="With a first key that has all scopes; its secret, `api_key`, is shown this once. "
    "A tenant with `max_running` is gathered in `spread` partitions (1 unless you say otherwise), "
    "each of which gets an equal share of the limit.",
    bodies=[
        Body(
            TenantIn,
            examples={"plain": {"name": "growth"}, "limited": {"name": "ads", "max_running": 50}},
        )
    ],
    replies=[
        ResponseDoc(201, "The new tenant.", NewTenantOut, [LOCATION, REPLAYED], links=_TENANT_LINKS)
    ],
    problems=[Conflict],
)

LIST_TENANTS = Doc(
    id="listTenants",
    tag=TENANTS,
    summary="List tenants",
    description="Newest first.",
    params=[LIMIT, NUMBER_CURSOR],
    replies=[ResponseDoc(200, "A page of tenants.", TenantPage)],
)

READ_TENANT = Doc(
    id="getTenant",
    tag=TENANTS,
    summary="Read a tenant",
    params=[TENANT_ID],
    replies=[ResponseDoc(200, "The tenant.", TenantOut)],
)

EDIT_TENANT = Doc(
    id="editTenant",
    tag=TENANTS,
    summary="Change a tenant's weight and limits",
    description="Its tasks move to the partitions that follow from the new spread.",
    params=[TENANT_ID],
    bodies=[Body(TenantPatch, examples={"limit": {"max_running": 20}, "weight": {"weight": 3}})],
    replies=[ResponseDoc(200, "The tenant as it is now.", TenantOut)],
)

DELETE_TENANT = Doc(
    id="deleteTenant",
    tag=TENANTS,
    summary="Let a tenant go",
    description="Only when it has no unfinished tasks. Its keys end at once; its history and all "
    "else it owned is removed within minutes. The audit log is kept.",
    params=[TENANT_ID],
    replies=[GONE],
    problems=[Conflict],
)

LIMITS = Doc(
    id="getLimits",
    tag=TENANTS,
    summary="Read the tenant's own limits",
    description="And how much of them is used now. Operators change them, through the tenant. Of a "
    "tenant with more than 50,000 unfinished tasks the oldest are looked at: `running_at_least` "
    "says that more may be running.",
    replies=[ResponseDoc(200, "The limits.", LimitsOut)],
)

CLUSTER = Doc(
    id="getCluster",
    tag=INSTALLATION,
    summary="Read the cluster",
    description="Its nodes, also the dead ones for an hour, who owns which partition, the version "
    "of the tz database, and how many schedules stand undecided.",
    replies=[ResponseDoc(200, "The cluster.", ClusterOut)],
)

AUDIT = Doc(
    id="listAudit",
    tag=INSTALLATION,
    summary="Read the audit log",
    description="Who changed what, newest first: keys, limits, purges. A tenant's key reads the "
    "tenant's entries; an operator's key that belongs to no tenant reads all there are. A page may "
    "be short, or even empty, and still have a `next_cursor`.",
    params=[
        Param("action", AnyText, "Only entries of this action, like `key.revoked`."),
        Param("actor", AnyText, "Only entries by this actor, like `key:1b7R…`."),
        Param("subject", AnyText, "Only entries about this thing, by its id."),
        LIMIT,
        NUMBER_CURSOR,
    ],
    replies=[ResponseDoc(200, "A page of entries.", AuditPage)],
)
