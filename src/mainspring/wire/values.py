"""Types of values in answers that stay readable for an SDK that is older than the server."""

from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from msgspec import Meta

W = TypeVar("W")

Json = Any
"""Any JSON: the API puts `Raw` there, the SDK reads plain values."""
JsonOrNull = Annotated[Any, Meta(extra_json_schema={"anyOf": [{}, {"type": "null"}]})]

if TYPE_CHECKING:
    OpenEnum = Annotated[W, "open"]
else:

    class OpenEnum:
        """An enumeration in an answer, `OpenEnum[Literal[...]]`: the words are documented, but any
        other one is decoded, too, for a newer server may know more of them."""

        def __class_getitem__(cls, words: object) -> object:
            return Annotated[Any, Meta(extra_json_schema={"enum": sorted(get_args(words))})]
