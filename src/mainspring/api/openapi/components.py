"""JSON Schemas of the types that the docs name, in a form that generators of clients understand.

msgspec describes the types in a way that generators read badly, so the same is written otherwise:
a default stands in the description (openapi-typescript requires a field that has one), an
enumeration names its type, and a field that every answer has is required.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

Json = dict[str, Any]
Rules = Mapping[str, Mapping[str, Any]]

_PLACE = "#/components/schemas/"


class Components:
    """The schema of each type, and the components that these refer to.

    `sent` are the types of request bodies, `others` those of answers, headers and parameters;
    `rules` says by the name of a component what its type cannot.
    """

    def __init__(self, sent: Sequence[object], others: Sequence[object], rules: Rules) -> None:
        self._types = [*sent, *others]  # kept, because their identities are the keys below
        found, known = msgspec.json.schema_components(self._types, ref_template=_PLACE + "{name}")
        self._found = {
            id(kind): _typed(schema) for kind, schema in zip(self._types, found, strict=True)
        }
        in_bodies = _reachable((self._found[id(kind)] for kind in sent), known)
        sparse = _sparse_structs(self._types)
        self.by_name = {
            name: _with_rules(
                _readable(_typed(schema), always_sent=name not in in_bodies | sparse),
                rules.get(name, {}),
            )
            for name, schema in sorted(known.items())
        }

    def of(self, kind: object) -> Json:
        """Return the schema of a type, mostly a reference."""
        return dict(self._found[id(kind)])


def _with_rules(schema: Json, rules: Mapping[str, Any]) -> Json:
    """Add the rules. A property that a rule describes anew keeps the description of its default."""
    properties: Json = dict(schema.get("properties", {}))
    for name, part in rules.get("properties", {}).items():
        if part is None:
            properties.pop(name, None)
        else:
            told = properties.get(name, {}).get("description")
            properties[name] = {**part, "description": told} if told else part
    return {**schema, **rules, "properties": properties} if properties else {**schema, **rules}


def _readable(schema: Json, *, always_sent: bool) -> Json:
    """Return an object with its defaults in the description, or without them in an answer."""
    properties: Json = {}
    required = set(schema.get("required", ()))
    for name, part in schema.get("properties", {}).items():
        rest = {key: value for key, value in part.items() if key != "default"}
        if "default" in part and always_sent:
            required.add(name)
        elif part.get("default") is not None:
            default = msgspec.json.encode(part["default"]).decode()
            words = (rest.get("description"), f"Default: `{default}`.")
            rest["description"] = " ".join(filter(None, words))
        properties[name] = rest
    if not properties:
        return schema
    return {
        **schema,
        "properties": properties,
        "required": [name for name in properties if name in required],
    }


def _typed(schema: Any) -> Any:
    """The schema with a type beside each enumeration of texts; one of a single text is a `const`,
    as the tags of targets are."""
    if isinstance(schema, list):
        return [_typed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _typed(part) for name, part in schema.items()}
    words = made.get("enum")
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        made["type"] = "string"
        if len(words) == 1:
            made["const"] = made.pop("enum")[0]
    return made


def _reachable(schemas: Iterable[Json], components: Mapping[str, Json]) -> set[str]:
    """Return the names of all components that these schemas lead to."""
    found: set[str] = set()
    ahead = [name for schema in schemas for name in _references(schema)]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += _references(components[name])
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    elif isinstance(schema, dict):
        if isinstance(place := schema.get("$ref"), str):
            yield place.removeprefix(_PLACE)
        for part in schema.values():
            yield from _references(part)


def _sparse_structs(types: Sequence[object]) -> set[str]:
    """Return the names of all structs that are encoded without fields at their defaults."""
    found: dict[type, bool] = {}
    ahead: list[object] = list(msgspec.inspect.multi_type_info(types))
    while ahead:
        part = ahead.pop()
        if isinstance(part, tuple):
            ahead += part
        elif isinstance(part, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if part.cls not in found:
                config = getattr(part.cls, "__struct_config__", None)
                found[part.cls] = config is not None and config.omit_defaults
                ahead += part.fields
        elif isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
            ahead += (getattr(part, name) for name in part.__struct_fields__)
    return {kind.__name__ for kind, sparse in found.items() if sparse}
