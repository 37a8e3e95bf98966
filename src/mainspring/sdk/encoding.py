"""JSON of what users pass around: msgspec structs, dataclasses, pydantic models, plain values."""

from datetime import datetime
from typing import Any

import msgspec

from mainspring.errors import InvalidArguments


def encode(value: object) -> bytes:
    """The value's JSON; InvalidArguments for what has none."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise InvalidArguments(f"it cannot be written as JSON: {problem}") from problem


def to_builtins(value: object) -> Any:
    """The value as plain lists, dictionaries, texts and numbers."""
    try:
        return msgspec.to_builtins(value, enc_hook=_hook)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise InvalidArguments(f"it cannot be written as JSON: {problem}") from problem


def with_offset(moment: datetime | str) -> datetime | str:
    """A time that means the same everywhere; one without an offset is refused."""
    if isinstance(moment, datetime) and moment.tzinfo is None:
        raise InvalidArguments(f"{moment!r} has no offset: say in which time zone it is meant")
    return moment


def _hook(value: Any) -> Any:
    # A pydantic model; asking its class keeps pydantic unimported where nobody uses it.
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is not something JSON knows")
    return dump(value, mode="json")


_ENCODER = msgspec.json.Encoder(enc_hook=_hook)
