"""Conditions: a small part of CEL, the Common Expression Language, that cannot do harm.

CEL has no loops, no side effects and no clock. Of it we take what compares and leave out what
builds (`+`, `map`, `filter`), so that no expression can use more memory than its scope; and inside
`all(…)` and `exists(…)` only the variable of the list may be named, so that the time is at most the
length of the expression times the size of what it looks at. The library bounds depth and turns.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cel_expr_python import cel

from mainspring.domain.workflows.definition import LONGEST_CONDITION
from mainspring.domain.workflows.reference import STEP_PARTS

_SUBSET = """
stdlib:
  exclude_macros: [map, filter, exists_one]
  exclude_functions:
    - name: "_+_"
    - name: bytes
"""
_ENVIRONMENT = cel.NewEnv(
    config=cel.NewEnvConfigFromYaml(_SUBSET),
    variables={"input": cel.Type.DYN, "steps": cel.Type.DYN},
)
_MACROS = ("all", "exists")
_BUILDERS = ("map", "filter", "exists_one")
_TOKEN = re.compile(
    r"""\s+|(?P<string>"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*')"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>\d[\w.]*)|(?P<mark>&&|\|\||[=!<>]=|//|.)""",
    re.DOTALL,
)
_PLACE = re.compile(r"ERROR: <input>:(?P<line>-?\d+):(?P<column>-?\d+): (?P<what>[^\n]*)")
_LONGEST_DETAIL = 200


Reach = dict[str, "Reach"]
"""The parts of a value that are read, and of these their parts; none means all."""


class BadCondition(ValueError):
    """A text is no condition; the message says why."""


class ConditionFailed(ValueError):
    """A condition has no answer, for example because it reads a field that does not exist."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A compiled condition, and the steps that it refers to."""

    program: cel.Expression
    steps: tuple[str, ...]
    reach: Reach

    def evaluate(self, variables: Mapping[str, object]) -> bool:
        """Evaluate the condition with these values of `input` and `steps`."""
        # The library takes in all it is given: that shall not cost more than what is asked about.
        seen = {name: _within(variables[name], part) for name, part in self.reach.items()}
        try:
            answer = self.program.eval(data=seen)
        except (RuntimeError, TypeError, ValueError, MemoryError) as error:
            raise ConditionFailed(str(error)[:_LONGEST_DETAIL]) from None
        value = answer.value()
        if isinstance(value, bool):
            return value
        if answer.type() == cel.Type.ERROR:
            raise ConditionFailed(str(value)[:_LONGEST_DETAIL])
        raise ConditionFailed(f"the answer is neither true nor false: {str(value)[:50]!r}")


@lru_cache(4096)
def compiled(text: str) -> Condition:
    """Compile a condition; BadCondition when the text is none."""
    if len(text) > LONGEST_CONDITION:
        raise BadCondition(f"has {len(text)} characters; the most is {LONGEST_CONDITION}")
    tokens = list(_tokens(text))
    _check_reach(tokens)
    paths = list(_paths(tokens))
    steps = tuple(dict.fromkeys(_step(path) for path in paths if path[0] == "steps"))
    try:
        program = _ENVIRONMENT.compile(text)
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadCondition(_sentence(str(error))) from None
    if program.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise BadCondition("is neither true nor false, but a value of another kind")
    return Condition(program, steps, _reach(paths))


# The text, looked at before the library sees it ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def _tokens(text: str) -> Iterator[_Token]:
    """Split a condition into tokens, with plain strings only: those the library reads alike."""
    end = -1
    before = ""
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind is None:
            continue
        if kind == "string" and before in ("string", "name") and match.start() == end:
            raise BadCondition("strings are written with one pair of quotes and no prefix")
        if match[0] in ("//", "`", '"', "'"):
            raise BadCondition(f"cannot be read from {text[match.start() :][:20]!r} on")
        if match[0] == "." and before not in ("name", "string", "close"):
            raise BadCondition("a dot follows a name, a string or a closing bracket")
        end, before = match.end(), "close" if match[0] in (")", "]", "}") else kind
        yield _Token(kind, match[0])


def _check_reach(tokens: Sequence[_Token]) -> None:
    """Check that inside all(…) and exists(…) only the list's variable is named."""
    depth = 0
    inside: int | None = None
    for at, token in enumerate(tokens):
        if token.text in ("(", "[", "{"):
            if inside is None and token.text == "(" and _called(tokens, at, _MACROS):
                inside = depth
            elif inside is not None and _called(tokens, at, _MACROS):
                raise BadCondition("all(…) and exists(…) cannot stand inside each other")
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
            if depth == inside:
                inside = None
        elif token.kind == "name" and _called(tokens, at + 1, _BUILDERS):
            raise BadCondition(f"there is no {token.text}(…) here: a condition builds no values")
        elif token.text == "matches" and not _has_fixed_pattern(tokens, at):
            raise BadCondition("matches is called on a text, with a pattern in quotes")
        elif token.text == "+":
            raise BadCondition("there is no + here: a condition compares and builds no values")
        elif inside is not None and _is_root(tokens, at):
            raise BadCondition(
                "inside all(…) and exists(…) only the list's own variable can be named, "
                f"and not {token.text}"
            )


def _called(tokens: Sequence[_Token], at: int, names: Sequence[str]) -> bool:
    """Whether this bracket opens the arguments of one of these methods."""
    return (
        1 < at < len(tokens)
        and tokens[at].text == "("
        and tokens[at - 1].text in names
        and tokens[at - 2].text == "."
    )


def _has_fixed_pattern(tokens: Sequence[_Token], at: int) -> bool:
    """Whether the pattern is a literal: one from the data could be as long as the text."""
    around = [token.text for token in tokens[at - 1 : at + 4]] if at else []
    return (
        len(around) == 5
        and around[0] == "."
        and around[2::2] == ["(", ")"]
        and (tokens[at + 2].kind == "string")
    )


def _is_root(tokens: Sequence[_Token], at: int) -> bool:
    return tokens[at].text in ("input", "steps") and (at == 0 or tokens[at - 1].text != ".")


def _paths(tokens: Sequence[_Token]) -> Iterator[tuple[str, ...]]:
    """Yield the paths that are read, from `input` or `steps` as far as fixed names lead."""
    for at, token in enumerate(tokens):
        if not _is_root(tokens, at):
            continue
        path = [token.text]
        rest = at + 1
        while (found := _key(tokens[rest : rest + 3])) is not None:
            name, length = found
            rest += length
            if rest < len(tokens) and tokens[rest].text == "(":
                break  # the name of a function
            path.append(name)
        yield tuple(path)


def _key(tokens: Sequence[_Token]) -> tuple[str, int] | None:
    """The name with which a path goes on, and how many tokens that takes."""
    match [(token.kind, token.text) for token in tokens]:
        case [("mark", "."), ("name", name), *_]:
            return name, 2
        case [("mark", "["), ("string", text), ("mark", "]")] if "\\" not in text:
            return text[1:-1], 3
        case _:
            return None


def _step(path: tuple[str, ...]) -> str:
    """Return the step that a path refers to."""
    if len(path) < 2:
        raise BadCondition('steps is followed by a step, as in steps.extract or steps["to-db"]')
    if len(path) < 3 or path[2] not in STEP_PARTS:
        raise BadCondition(
            f"of a step there are {', '.join(STEP_PARTS)}, as in steps.extract.result"
            f'; a step whose name has a hyphen is written steps["{path[1][:50]}-…"]'
        )
    return path[1]


def _reach(paths: Sequence[tuple[str, ...]]) -> Reach:
    """Return the parts of a scope that are read; a part that is read as a whole is empty."""
    reach: Reach = {}
    for path in sorted(paths, key=len, reverse=True):
        part = reach
        for name in path:
            part = part.setdefault(name, {})
        part.clear()
    return reach


def _within(value: object, reach: Reach) -> object:
    if not reach or not isinstance(value, Mapping):
        return value
    return {name: _within(value[name], part) for name, part in reach.items() if name in value}


def _sentence(error: str) -> str:
    """Return the library's error message in one line."""
    match = _PLACE.search(error)
    if match is None:
        return error.partition("\n")[0][:_LONGEST_DETAIL]
    what = match["what"].replace(" (in container '')", "").replace("Syntax error: ", "")
    what = what.partition(" expecting {")[0].removesuffix(" [INVALID_ARGUMENT]")
    if what.startswith("undeclared reference to"):
        what += " (there are input and steps)"
    place = f"at character {match['column']}: " if match["column"] != "-1" else ""
    return (place + what)[:_LONGEST_DETAIL]
