"""Arguments of a task: checked against the function's signature before sending and on arrival.

A payload is a JSON object with one member per parameter, so that tasks can also be made by curl.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from types import GenericAlias
from typing import Any, NamedTuple, get_type_hints

import msgspec

from mainspring.errors import InvalidArguments
from mainspring.sdk.context import Context
from mainspring.sdk.encoding import encode

_Kind = inspect.Parameter


class Bound(NamedTuple):
    """The arguments of a call of a function."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Signature:
    """The parameters of a function, without the context that the worker adds."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the payload of a call; InvalidArguments if the arguments do not fit."""
        try:
            bound = self._plain.bind(*args, **kwargs)
        except TypeError as problem:
            raise InvalidArguments(f"{self._name}: {problem}") from None
        values: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self._plain.parameters[name].kind is _Kind.VAR_KEYWORD:
                values.update(value)
            else:
                values[name] = value
        payload = encode(values)
        self._decode(payload)
        return payload

    def with_context(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: Context
    ) -> Bound:
        """Return a plain call with the context added where it is wanted."""
        names = list(self._signature.parameters)
        index = names.index(self.context_parameter or "")
        kind = self._signature.parameters[names[index]].kind
        if kind is _Kind.KEYWORD_ONLY or len(args) < index:
            return Bound(args, {**kwargs, names[index]: context})
        return Bound((*args[:index], context, *args[index:]), dict(kwargs))

    def unpack(self, payload: bytes, context: Context | None) -> Bound:
        """Return the call that a payload asks for."""
        values = self._decode(payload)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if self.context_parameter is not None:
            values[self.context_parameter] = context
        by_position = True
        for name, kind in self._kinds:
            if kind is _Kind.VAR_KEYWORD:
                kwargs |= {n: v for n, v in values.items() if n not in self._named}
            elif name not in values:
                by_position = False
            elif kind is _Kind.VAR_POSITIONAL:
                args.extend(values[name])
            elif kind is _Kind.KEYWORD_ONLY or not by_position:
                kwargs[name] = values[name]
            else:
                args.append(values[name])
        return Bound(tuple(args), kwargs)

    @cached_property
    def context_parameter(self) -> str | None:
        """The parameter that wants the context, if there is one."""
        for name, hint in self._hints.items():
            if hint is Context and name in self._signature.parameters:
                return name
        return None

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", "the function")

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self._function, include_extras=True)
        except (NameError, TypeError):
            # A type that is only known to the type checker: then its values are not checked.
            return dict(getattr(self._function, "__annotations__", {}))

    @cached_property
    def _plain(self) -> inspect.Signature:
        kept = [
            parameter
            for name, parameter in self._signature.parameters.items()
            if name != self.context_parameter
        ]
        return self._signature.replace(parameters=kept)

    @cached_property
    def _kinds(self) -> tuple[tuple[str, Any], ...]:
        return tuple((n, p.kind) for n, p in self._signature.parameters.items())

    @cached_property
    def _named(self) -> frozenset[str]:
        """The parameters by which something can be given, the context's too."""
        return frozenset(name for name, kind in self._kinds if kind is not _Kind.VAR_KEYWORD)

    @cached_property
    def _shape(self) -> tuple[Any, bool]:
        """A struct with a field per parameter, and whether other members are allowed."""
        fields: list[Any] = []
        open_ended = False
        for name, parameter in self._plain.parameters.items():
            hint = _known(self._hints.get(name, Any))
            match parameter.kind:
                case _Kind.VAR_KEYWORD:
                    open_ended = True
                case _Kind.VAR_POSITIONAL:
                    fields.append((name, GenericAlias(list, (hint,)), msgspec.UNSET))
                case _ if parameter.default is _Kind.empty:
                    fields.append((name, hint))
                case _:
                    # What is left out takes the default of the function that runs, as in a call.
                    fields.append((name, hint | msgspec.UnsetType, msgspec.UNSET))
        shape = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=not open_ended
        )
        return msgspec.json.Decoder(shape, dec_hook=_from_json), open_ended

    def _decode(self, payload: bytes) -> dict[str, Any]:
        decoder, open_ended = self._shape
        try:
            found = decoder.decode(payload)
            values = {
                name: value
                for name in found.__struct_fields__
                if (value := getattr(found, name)) is not msgspec.UNSET
            }
            if open_ended:
                values = {**msgspec.json.decode(payload), **values}
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as problem:
            raise InvalidArguments(f"{self._name}: {problem}") from problem
        return values


def _known(hint: Any) -> Any:
    """Return the type, or Any for one that cannot be checked."""
    try:
        msgspec.json.Decoder(hint | msgspec.UnsetType, dec_hook=_from_json)
    except (TypeError, RuntimeError):
        return Any
    return hint


def _from_json(kind: type[Any], value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)  # a pydantic model
    if validate is not None:
        return validate(value)
    if isinstance(value, kind):
        return value
    raise NotImplementedError(f"{kind.__name__} cannot be made from JSON")
