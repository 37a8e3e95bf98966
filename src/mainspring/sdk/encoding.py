"""JSON of the values of users: msgspec structs, dataclasses, pydantic models, plain values."""

from collections.abc import Mapping
from datetime import datetime
from math import isfinite
from typing import Any

import msgspec

from mainspring.errors import InvalidArguments


def encode(value: object) -> bytes:
    """Return the value's JSON; InvalidArguments for what has none."""
    try:
        data = _ENCODER.encode(value)
        if b"null" in data:  # what most values do without, and found in no time
            _check_numbers(msgspec.to_builtins(value, enc_hook=_hook_but_raw))
    except Exception as problem:  # a model's own code may raise anything
        raise InvalidArguments(f"it cannot be written as JSON: {problem}") from problem
    return data


def to_builtins(value: object) -> Any:
    """Return the value as plain lists, dictionaries, texts and numbers."""
    try:
        return msgspec.to_builtins(value, enc_hook=_hook)
    except Exception as problem:  # a model's own code may raise anything
        raise InvalidArguments(f"it cannot be written as JSON: {problem}") from problem


def sendable(text: str) -> str:
    """Replace what JSON or the database refuses: lone surrogates (of file names), and zeros."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def present(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value: None leaves one to the server."""
    return {name: value for name, value in fields.items() if value is not None}


def with_offset(moment: datetime | str) -> datetime | str:
    """Return the time if it has an offset; InvalidArguments if not."""
    if isinstance(moment, datetime) and moment.tzinfo is None:
        raise InvalidArguments(f"{moment!r} has no offset: say in which time zone it is meant")
    return moment


def with_offsets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields; InvalidArguments where a time among them has no offset."""
    for name in ("run_at", "expires_at", "start_at", "end_at"):
        if fields.get(name) is not None:
            with_offset(fields[name])
    return dict(fields)


def _check_numbers(plain: Any) -> None:
    """Refuse NaN and infinity, which would become null without notice."""
    found = [plain]
    for one in found:  # it grows meanwhile
        kind = type(one)
        if kind is float and not isfinite(one):
            raise ValueError(f"JSON has no {one}")
        if kind is dict:
            found.extend(one.values())
        elif kind is list or kind is tuple:
            found.extend(one)


def _hook_but_raw(value: Any) -> Any:
    return None if isinstance(value, msgspec.Raw) else _hook(value)


def _hook(value: Any) -> Any:
    # A pydantic model; asking its class makes an import of pydantic unnecessary.
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is not something JSON knows")
    return dump(value, mode="json")


_ENCODER = msgspec.json.Encoder(enc_hook=_hook)
