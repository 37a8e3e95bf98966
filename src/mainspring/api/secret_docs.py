"""Webhook secrets, egress rules and completion, in words and types."""

from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Raw, Struct, field

from mainspring.api.documentation import Body, Doc, Reply
from mainspring.api.views import TaskOut, Time
from mainspring.api.wire import DAY, Line
from mainspring.errors import Conflict

TAG = "Webhooks"

Kind = Literal["hmac", "ed25519"]
SecretText = Annotated[str, Meta(min_length=1, max_length=200)]
Pem = Annotated[str, Meta(min_length=1, max_length=100_000)]
Networks = Annotated[tuple[Annotated[str, Meta(max_length=50)], ...], Meta(max_length=100)]


class SecretIn(Struct, forbid_unknown_fields=True):
    """A signing secret to make, or one to take over from elsewhere."""

    name: Line | None = None
    kind: Kind = "hmac"
    secret: SecretText | None = None


class RotateIn(Struct, forbid_unknown_fields=True):
    """How long the old secret signs beside the new one, in seconds."""

    overlap: Annotated[float, Meta(ge=0, le=30 * DAY)] = DAY
    secret: SecretText | None = None


class SecretOut(Struct):
    """A signing secret without the secret."""

    id: UUID
    name: str | None
    kind: str
    public_key: str | None
    created_at: Time
    expires_at: Time | None


class NewSecretOut(SecretOut):
    """A signing secret, shown this once."""

    secret: str


class RotatedOut(Struct):
    """The new secret, shown this once, and the old one with its end."""

    current: NewSecretOut
    previous: SecretOut


class SecretList(Struct):
    """The secrets that sign now."""

    items: list[SecretOut]


class EgressIn(Struct, forbid_unknown_fields=True):
    """What a tenant's webhooks may call beside the installation's rules, and its TLS identity."""

    allow: Networks = ()
    deny: Networks = ()
    ca: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None


class EgressOut(Struct):
    """The rules as they are; the client key is never shown."""

    allow: list[str]
    deny: list[str]
    ca: str | None
    certificate: str | None


class CompleteIn(Struct, forbid_unknown_fields=True):
    """How the work ended that a receiver had accepted with `Mainspring-Complete: later`."""

    fence: int
    status: Literal["succeeded", "failed"]
    result: Raw = field(default_factory=Raw)
    error: Annotated[str, Meta(max_length=10_000)] | None = None
    retryable: bool = True


LIST = Doc(
    id="listSecrets",
    tag=TAG,
    summary="List signing secrets",
    description="Those that sign now. The secrets themselves are not shown.",
    replies=[Reply(200, "The live secrets.", SecretList)],
)
CREATE = Doc(
    id="createSecret",
    tag=TAG,
    summary="Make a signing secret",
    description="The secret is in the answer and nowhere else afterwards.",
    bodies=[Body(SecretIn, examples={"new": {"name": "main"}}, required=False)],
    replies=[Reply(201, "The new secret.", NewSecretOut)],
    problems=[Conflict],
)
ROTATE = Doc(
    id="rotateSecret",
    tag=TAG,
    summary="Replace a signing secret",
    description="Both sign until the old one ends, `overlap` seconds from now.",
    bodies=[Body(RotateIn, examples={"a day": {"overlap": 86400}}, required=False)],
    replies=[Reply(201, "The new secret and the old one.", RotatedOut)],
    problems=[Conflict],
)
DELETE = Doc(
    id="deleteSecret",
    tag=TAG,
    summary="Delete a signing secret",
    description="It signs nothing any more.",
    replies=[Reply(204, "It is gone.")],
)
READ_EGRESS = Doc(
    id="readEgress",
    tag=TAG,
    summary="Read a tenant's egress rules",
    replies=[Reply(200, "The rules.", EgressOut)],
)
CHANGE_EGRESS = Doc(
    id="changeEgress",
    tag=TAG,
    summary="Replace a tenant's egress rules and TLS identity",
    bodies=[Body(EgressIn, examples={"office": {"allow": ["10.20.0.0/16"]}})],
    replies=[Reply(200, "The rules.", EgressOut)],
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
    replies=[Reply(200, "The task as it is now.", TaskOut)],
    problems=[Conflict],
)
