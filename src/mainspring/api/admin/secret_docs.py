"""Webhook secrets, egress rules and completion, in words and types."""

from mainspring.api.openapi.operation import (
    GONE,
    REPLAYED,
    TENANT_ID,
    Body,
    Doc,
    Link,
    ResponseDoc,
    never,
    without,
)
from mainspring.errors import Conflict
from mainspring.execution.signing import SECRET_PATTERN
from mainspring.store.vault import NoKey
from mainspring.wire.tasks import CompleteIn, TaskOut
from mainspring.wire.webhooks import (
    EgressIn,
    EgressOut,
    NewSecretOut,
    RotatedOut,
    RotateIn,
    SecretIn,
    SecretList,
)

TAG = "Webhooks"

_SECRET = {
    "properties": {
        "secret": {"anyOf": [{"type": "string", "pattern": SECRET_PATTERN}, {"type": "null"}]}
    }
}
_LINKS = {
    "rotate": Link("rotateSecret", {"id": "$response.body#/id"}, "replace it"),
    "delete": Link("deleteSecret", {"id": "$response.body#/id"}, "end it"),
}

LIST = Doc(
    id="listSecrets",
    tag=TAG,
    summary="List signing secrets",
    description="Those that sign now. The secrets themselves are not shown.",
    replies=[ResponseDoc(200, "The live secrets.", SecretList)],
)
CREATE = Doc(
    id="createSecret",
    tag=TAG,
    summary="Make a signing secret",
    description="The secret is in the answer and nowhere else afterwards. One that is taken over "
    "from elsewhere says by its prefix which kind it is: `whsec_` HMAC, `whsk_` ed25519.",
    bodies=[
        Body(
            SecretIn,
            examples={"new": {"name": "main"}},
            required=False,
            rules={"SecretIn": _SECRET},
        )
    ],
    replies=[ResponseDoc(201, "The new secret.", NewSecretOut, [REPLAYED], links=_LINKS)],
    problems=[Conflict, NoKey],
)
ROTATE = Doc(
    id="rotateSecret",
    tag=TAG,
    summary="Replace a signing secret",
    description="Both sign until the old one ends, `overlap` seconds from now. The new one is of "
    "the same kind.",
    bodies=[
        Body(
            RotateIn,
            examples={"a day": {"overlap": 86400}},
            required=False,
            rules={"RotateIn": _SECRET},
        )
    ],
    replies=[ResponseDoc(201, "The new secret and the old one.", RotatedOut, [REPLAYED])],
    problems=[Conflict, NoKey],
)
DELETE = Doc(
    id="deleteSecret",
    tag=TAG,
    summary="Delete a signing secret",
    description="It signs nothing any more.",
    replies=[GONE],
)
READ_EGRESS = Doc(
    id="readEgress",
    tag=TAG,
    summary="Read a tenant's egress rules",
    params=[TENANT_ID],
    replies=[ResponseDoc(200, "The rules.", EgressOut)],
)
CHANGE_EGRESS = Doc(
    id="changeEgress",
    tag=TAG,
    summary="Replace a tenant's egress rules and TLS identity",
    description="Networks that its webhooks may call, or may not, beside the installation's rules. "
    "`ca` holds the authorities it trusts; `certificate` (its own first) and `key` go together.",
    params=[TENANT_ID],
    bodies=[
        Body(
            EgressIn,
            examples={"office": {"allow": ["10.20.0.0/16"]}},
            rules={"EgressIn": never(without("certificate", "key"), without("key", "certificate"))},
        )
    ],
    replies=[ResponseDoc(200, "The rules.", EgressOut)],
    problems=[NoKey],
)
COMPLETE = Doc(
    id="completeTask",
    tag=TAG,
    summary="Report the outcome of accepted work",
    description="For a receiver that answered 202 with `Mainspring-Complete: later`. The fence is "
    "the one it was sent in `X-Mainspring-Fence`; a newer try makes an older fence void (409).",
    bodies=[
        Body(
            CompleteIn,
            examples={"done": {"fence": 1, "status": "succeeded", "result": {"rows": 12}}},
        )
    ],
    replies=[ResponseDoc(200, "The task as it is now.", TaskOut)],
    problems=[Conflict],
)
