"""All problems of a body's shape, not only the first.

The decoder stops at the first mistake. Only then is the body checked again, part by part, so that
a caller can correct everything at once.

Decoders are made once and kept: making and dropping one for some unions of constrained texts
crashes msgspec 0.22.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Raw, Struct

from mainspring.api.http.bodies import encode_json
from mainspring.api.http.problems import below
from mainspring.errors import Problem
from mainspring.wire.patterns import in_words
from mainspring.wire.tasks import TIME_FORM, HandlerTarget

S = TypeVar("S", bound=Struct)

# What msgspec says of words and tags that are not among those allowed.
_NONE_OF = ("Invalid enum value", "Invalid value")
# Valid values for required fields that cannot be read.
_PLACEHOLDERS = {"target": HandlerTarget("x"), "url": "https://x.example", "name": "x"}

# How msgspec's complaints about times end.
_TIMES = ("RFC3339 encoded datetime", "`datetime` with a timezone component")
# msgspec repeats unknown names and values, which may be as long as the body.
_LONGEST_DETAIL = 300
_LOCATED = re.compile(r"(?s)(?P<what>.*) - at (?:`key` in )?`\$(?P<path>.*)`")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_ITEMS = msgspec.json.Decoder(list[Raw])
_FRACTION = re.compile(rb"[0-9](?:\.[0-9]|[eE][-+0-9])")
# More digits than any integer has that is taken: longer texts and powers are not worked out.
_MOST_DIGITS = 32
# The longest list whose items hold integers has ten thousand: an item and its integer are two.
_MOST_MISFITS = 20_100


def all_problems(kind: Any, body: bytes, most: int) -> list[Problem]:
    """Return every problem of a body, up to `most`; none when the body is not JSON."""
    try:
        value = msgspec.json.decode(body)
        return list(islice(_shape_of(kind).problems(value, ""), most))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []


def with_integers(kind: Any, body: bytes) -> bytes:
    """Return the body with 5 in place of 5.0 where an integer is needed: in JSON Schema they are
    the same, for the decoder they are not. Payloads stay as they are."""
    if _FRACTION.search(body) is None:
        return body
    try:
        return bytes(_shape_of(kind).with_integers(Raw(body), iter(range(_MOST_MISFITS))))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body


def readable_as(kind: type[S], body: bytes) -> S | None:
    """Return what can be read of a body that was refused: the rest is left at its defaults or,
    where there are none, at a placeholder."""
    try:
        found = _shape_of(kind).readable(Raw(with_integers(kind, body)))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return found if isinstance(found, kind) else None


class _Shape:
    """A type, taken apart as far as that helps to find more than one mistake in a value of it."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        members = list(_members(kind))
        self._anything_goes = Raw in members  # bytes that are kept as they came
        self._decoder = msgspec.json.Decoder(kind)
        self._structs = [m for m in members if isinstance(m, type) and issubclass(m, Struct)]
        mapping = next((m for m in members if get_origin(m) is dict), None)
        self._mapping = None if mapping is None else msgspec.json.Decoder(mapping)
        sequence = next((m for m in members if get_origin(m) in (list, tuple)), None)
        self._element = None if sequence is None else _Shape(get_args(sequence)[0])
        self._holds_integers: bool = (
            bool(self._structs)
            or any(member is int or get_origin(member) is Literal for member in members)
            or (self._element is not None and self._element._holds_integers)
        )

    def problems(self, value: object, at: str) -> Iterator[Problem]:
        """Yield the problems of a value, part by part if it does not fit as a whole."""
        if self._anything_goes:
            return
        error = _error(self._decoder, value)
        if error is not None:
            found = False
            for problem in self._in_parts(value, at):
                found = True
                yield problem
            if not found:
                problem = locate(error, at)
                if problem.detail.startswith(_NONE_OF):
                    problem = Problem(problem.pointer, problem.detail + _choice(self._kind))
                yield problem

    def _in_parts(self, value: object, at: str) -> Iterator[Problem]:
        if isinstance(value, list) and self._element is not None:
            for index, part in enumerate(value):
                yield from self._element.problems(part, f"{at}/{index}")
        elif isinstance(value, dict):
            struct = self._struct_for(value)
            if struct is not None:
                yield from _in_struct(struct, value, at)
            elif self._mapping is not None:
                for name, part in value.items():
                    error = _error(self._mapping, {name: part})
                    if error is not None:
                        yield Problem(below(at, name[:100]), locate(error, at).detail)

    def with_integers(self, text: Raw, budget: Iterator[int]) -> Raw:
        """Return a value with its integers written like integers, part by part if it does not fit
        as a whole; of a list, up to the first item that cannot be made to fit.

        `budget` has an item for each part that may be examined: a part takes about ten
        microseconds, and a body may have millions.
        """
        if self._anything_goes or not self._holds_integers or self._fits(text):
            return text
        if next(budget, None) is None:
            return text
        match bytes(text).lstrip()[:1]:
            case b"{":
                members = _MEMBERS.decode(text)
                struct = self._struct_for(members)
                for field in _fields_of(struct) if struct else ():
                    if field.name in members:
                        members[field.name] = field.shape.with_integers(members[field.name], budget)
                return Raw(encode_json(members))
            case b"[" if self._element is not None:
                items, element = _ITEMS.decode(text), self._element
                for index, item in enumerate(items):
                    if not element._fits(item):
                        items[index] = element.with_integers(item, budget)
                        if not element._fits(items[index]):
                            break
                return Raw(encode_json(items))
            case _:
                whole = _whole(text)
                return text if whole is None or not self._fits(whole) else whole

    def _fits(self, text: Raw) -> bool:
        try:
            self._decoder.decode(text)
        except msgspec.ValidationError:
            return False
        return True

    def readable(self, text: Raw) -> object:
        """Return a value as far as it can be read; NODEFAULT if nothing of it can."""
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError:
            pass
        try:
            members = _MEMBERS.decode(text)
        except msgspec.ValidationError:  # it is no object
            return NODEFAULT
        struct = self._struct_for(members)
        if struct is None:
            return NODEFAULT
        known: dict[str, object] = {}
        for field in _fields_of(struct):
            part: object = NODEFAULT
            if field.name in members:
                part = field.shape.readable(members[field.name])
            if part is NODEFAULT and field.required:
                part = _PLACEHOLDERS.get(field.name, NODEFAULT)
                if part is NODEFAULT:
                    return NODEFAULT
            if part is not NODEFAULT:
                known[field.attribute] = part
        return struct(**known)

    def _struct_for(self, value: Mapping[str, object]) -> type[Struct] | None:
        """Return the struct a value is meant to be: the only one, or the one its tag names."""
        if len(self._structs) == 1:
            return self._structs[0]
        for struct in self._structs:
            config = struct.__struct_config__
            if config.tag_field is None:
                continue
            tag = value.get(config.tag_field)
            if (msgspec.json.decode(tag) if isinstance(tag, Raw) else tag) == config.tag:
                return struct
        return None


class _Field(NamedTuple):
    attribute: str
    name: str
    shape: _Shape
    required: bool


_shape_of = cache(_Shape)


@cache
def _fields_of(struct: type[Struct]) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            field.name,
            field.encode_name,
            _Shape(field.type),
            field.default is NODEFAULT and field.default_factory is NODEFAULT,
        )
        for field in msgspec.structs.fields(struct)
    )


def locate(error: msgspec.ValidationError, at: str) -> Problem:
    """Return the problem that msgspec names, with its place below `at`."""
    match = _LOCATED.fullmatch(str(error))
    what = (match["what"] if match else str(error))[:_LONGEST_DETAIL]
    if what.endswith(_TIMES):
        what += f": {TIME_FORM}"
    # msgspec's `.tasks[3].target.url` becomes `/tasks/3/target/url`; it does not name the key of a
    # mapping: the pointer then ends at the mapping.
    steps = _STEP.finditer(match["path"] if match else "")
    names = [step["name"] or step["index"] for step in steps]
    pointer = "".join(below("", name) for name in names if name != "...")
    return Problem(at + pointer, in_words(what))


def _in_struct(struct: type[Struct], value: dict[str, object], at: str) -> Iterator[Problem]:
    config, fields = struct.__struct_config__, _fields_of(struct)
    for field in fields:
        if field.name in value:
            yield from field.shape.problems(value[field.name], below(at, field.name))
        elif field.required:
            yield Problem(at, f"Object missing required field `{field.name}`")
    if config.forbid_unknown_fields:
        known = {config.tag_field, *(field.name for field in fields)}
        for name in value:
            if name not in known:
                yield Problem(below(at, name[:100]), "is not a field that is known here")


def _error(
    decoder: "msgspec.json.Decoder[object]", value: object
) -> msgspec.ValidationError | None:
    try:
        decoder.decode(encode_json(value))
    except msgspec.ValidationError as error:
        return error
    return None


def _whole(text: Raw) -> Raw | None:
    """Return a number like 5.0 as an integer, exactly; None for anything else."""
    written = bytes(text)
    if len(written) > _MOST_DIGITS or _FRACTION.search(written) is None:
        return None
    try:
        number = Decimal(written.decode())
    except (ArithmeticError, ValueError):  # no number at all
        return None
    if number.adjusted() > _MOST_DIGITS or number != number.to_integral_value():
        return None
    return Raw(b"%d" % int(number))


def _choice(kind: Any) -> str:
    """Return the words and tags that this type allows, as the end of a sentence."""
    words: list[str] = []
    numbers = ""
    info = msgspec.inspect.type_info(kind)
    for member in info.types if isinstance(info, msgspec.inspect.UnionType) else (info,):
        match member:
            case msgspec.inspect.LiteralType(values=values):
                words += map(str, values)
            case msgspec.inspect.EnumType(cls=enum):
                words += [str(choice.value) for choice in enum]
            case msgspec.inspect.StructType(tag=str(tag)):
                words.append(tag)
            case msgspec.inspect.IntType(ge=least, le=most):
                numbers = f", or a whole number from {least} to {most}"
            case _:
                pass
    return f": it is one of {', '.join(words)}{numbers}"


def _members(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for member in get_args(kind):
            yield from _members(member)
    else:
        yield kind
