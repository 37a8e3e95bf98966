"""The house rules, as tests: each says in its docstring why it exists.

A rule that stands in the way of good code is changed here, in the open, and never worked around.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support.words import EXECUTION, NOT_IN_NAMES, NOWHERE, OPENINGS, docstrings_in, names_in

# `./dev lint` runs these as well.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

LONGEST_FILE = 510
LONGEST_FUNCTION = 60
LARGEST_FOLDER = 20
LONGEST_TEST_NAME = 60

# Which rooms (packages, and modules at the root) each room may import from, besides itself.
ROOTS = {"config", "errors", "clock", "lifecycle", "crash_points", "subprocesses", "timezones"}
ADAPTER = ROOTS | {"domain", "observe"}
USE_CASE = ADAPTER | {"store", "postgres"}
JOINER = USE_CASE | {"engine", "schedules", "workflows", "broker", "execution", "notify"}
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"errors", "domain", "sdk"},
    "errors": set(),
    "crash_points": set(),
    "subprocesses": set(),
    "clock": {"errors"},
    "config": {"errors", "domain"},
    "lifecycle": {"errors", "clock", "observe"},
    "tls": {"errors", "config"},
    "timezones": {"domain"},
    "domain": {"errors"},
    "engine": {"errors", "domain"},
    # The clock is a root without dependencies; a worker measures timeouts and leases with it.
    "sdk": {"errors", "domain", "wire", "clock", "subprocesses", "__init__"},
    # What users' tests import: the engine in virtual time, and a server in a process of its own.
    "testing": {"errors", "domain", "clock", "engine", "sdk"},
    "observe": ROOTS,
    "wire": {"domain"},
    "postgres": ADAPTER,
    "store": ADAPTER | {"postgres"},
    "schedules": USE_CASE,
    "workflows": USE_CASE,
    "broker": ADAPTER,
    "execution": ADAPTER,
    "notify": ADAPTER,
    "node": JOINER,
    "api": JOINER | {"wire", "node", "__init__"},
    "dashboard": {"errors"},
    "cli": {"wiring", "config", "errors", "clock", "sdk", "observe", "__init__"},
    "__main__": {"cli"},
    "wiring": JOINER | {"node", "api", "dashboard", "tls", "__init__"},
}

# The implementations one can choose between: outside their room only the wiring names them.
CONCRETE = {
    "mainspring.broker.redis",
    "mainspring.broker.rabbitmq",
    "mainspring.broker.kafka",
    "mainspring.postgres.embedded",
}

PURE_ROOMS = {"domain", "engine"}
PURE_LIBRARY = {
    *("__future__", "abc", "collections", "contextlib", "dataclasses", "enum", "functools"),
    *("itertools", "operator", "types", "typing"),
    *("bisect", "calendar", "datetime", "decimal", "fractions", "graphlib", "heapq", "math"),
    *("base64", "hashlib", "hmac", "ipaddress", "json", "re", "string", "struct", "zlib"),
    *("urllib.parse", "zoneinfo"),
}
# A generator that was given its seed repeats itself, the module's own functions do not; a UUID
# is a value, but making one is not.
PURE_NAMES = {"random.Random", "uuid.UUID"}
# The library the domain rests on, a function of its arguments alone: CEL, a language without loops,
# side effects or a clock, in which a workflow's conditions are written.
PURE_PACKAGES = {"cel_expr_python"}

CLOCK_READS = {
    *(f"time.{name}{ns}" for name in ("time", "monotonic", "perf_counter") for ns in ("", "_ns")),
    *(f"time.{name}" for name in ("gmtime", "localtime", "ctime", "clock_gettime")),
    *(f"datetime.{name}" for name in ("now", "utcnow", "today")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    *("date.today", "datetime.date.today"),
}
ENVIRONMENT_READS = {"os.environ", "os.environb", "os.getenv", "os.getenvb"}

NOT_COMMITTED = {".git", ".venv", ".dev", ".hypothesis", "__pycache__", "dist", "build"}
# These files have to spell out what they forbid.
TEXT_EXEMPT = {
    Path(__file__).resolve(),
    *(ROOT / "tests" / f for f in ("support/words.py", "unit/test_house_words.py")),
}
# What was called otherwise is history: of users' versions, and of databases.
HISTORY = {ROOT / "CHANGELOG.md", *(SOURCE / "mainspring" / "store" / "migrations").glob("*.sql")}


# --- who may import whom --------------------------------------------------------------------


def test_rooms_import_only_what_they_may() -> None:
    """A layer that reaches past its neighbours can no longer be changed or tested alone."""
    assert_none(
        f"{module.where(line)} imports {target}: not for {module.room}"
        for module in modules()
        for line, target in module.own_imports()
        if room_of(target) not in MAY_IMPORT.get(module.room, set()) | {module.room}
    )


def test_every_room_has_a_rule() -> None:
    """A new package must say what it may import, before it imports everything."""
    assert_none(
        f"{module.where(1)}: add {module.room!r} to MAY_IMPORT"
        for module in modules()
        if module.room not in MAY_IMPORT
    )


def test_only_the_wiring_names_concrete_adapters() -> None:
    """Whoever names one adapter cannot be run with another."""
    assert_none(
        f"{module.where(line)} imports {target}"
        for module in modules()
        for line, target in module.own_imports()
        if target in CONCRETE and module.room not in ("wiring", room_of(target))
    )


def test_no_import_cycles() -> None:
    """Modules in a cycle are one module in several files: none is understood alone."""
    graph = {module.name: {name for _, name in module.own_imports()} for module in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_domain_and_engine_are_pure() -> None:
    """The same core runs in production, in the simulation and under a user's virtual clock."""
    assert_none(
        f"{module.where(line)} imports {target}: not pure"
        for module in modules()
        if module.room in PURE_ROOMS
        for line, target in module.imports()
        if not is_pure(target)
    )


def test_domain_and_engine_never_await() -> None:
    """A core that can be suspended in mid-decision has no state one can reason about."""
    asynchronous = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    assert_none(
        module.where(node.lineno)
        for module in modules()
        if module.room in PURE_ROOMS
        for node in ast.walk(module.tree)
        if isinstance(node, asynchronous)
    )


# --- the world outside ----------------------------------------------------------------------


def test_only_the_clock_reads_the_time() -> None:
    """Decisions use the database's time; a stray reading of the node's own is a bug in waiting."""
    assert_none(uses(CLOCK_READS, allowed={"clock"}))


def test_only_the_config_reads_the_environment() -> None:
    """Every setting is validated once, documented in one place, and named in one error. The SDK
    reads three of them for programs that have no use for all the others, in one module."""
    readers = {
        module.name
        for module in modules()
        if module.room == "sdk"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ENVIRONMENT_READS
    }
    assert readers <= {"mainspring.sdk.environment"}
    assert_none(uses(ENVIRONMENT_READS, allowed={"config", "sdk"}))


def test_only_the_cli_prints() -> None:
    """A server speaks through its log, where each record has an action and a context."""
    assert_none(uses({"print"}, allowed={"cli"}))


def test_a_transaction_uses_no_second_connection() -> None:
    """Who holds one connection and waits for another keeps it from those who wait likewise: as many
    of them as the pool has connections stand still until they give up."""
    assert_none(
        f"{module.where(used.lineno)} uses {ast.unparse(used)}: run it on the connection"
        for module in modules()
        for method in ast.walk(module.tree)
        if isinstance(method, ast.AsyncFunctionDef)
        and {"connection", "change", "tx"} & {arg.arg for arg in method.args.args}
        for used in ast.walk(method)
        if isinstance(used, ast.Attribute) and used.attr in ("_database", "database")
    )


# --- shape ----------------------------------------------------------------------------------


def test_every_module_says_what_it_is_for() -> None:
    """A newcomer opens a file and reads its purpose first."""
    assert_none(module.where(1) for module in modules() if not ast.get_docstring(module.tree))


def test_every_error_is_in_the_tree() -> None:
    """Who catches one wants to see which others it stands for."""
    tree = ast.parse((SOURCE / "mainspring" / "errors.py").read_text())
    drawn = set(re.findall(r"[├└]── (\w+)", ast.get_docstring(tree) or "")) | {"MainspringError"}
    kinds = {"MainspringError"}
    for node in tree.body:  # a class comes after the one that it is made of
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            kinds |= {node.name} if bases & kinds else set()
    assert drawn == kinds


def test_files_have_one_subject() -> None:
    """Past this length a file has two subjects."""
    assert_none(
        f"{module.where(1)} has {length} lines, more than {LONGEST_FILE}"
        for module in modules()
        if (length := len(module.text.splitlines())) > LONGEST_FILE
    )


def test_functions_fit_on_a_screen() -> None:
    """What does not fit on a screen is not understood at one reading."""
    assert_none(
        f"{module.where(node.lineno)} {node.name} has {length} lines, more than {LONGEST_FUNCTION}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    )


def test_folders_are_read_at_a_glance() -> None:
    """A folder with more modules is several folders whose borders one has to guess."""
    sizes = Counter(module.path.parent.relative_to(ROOT) for module in modules())
    assert_none(
        f"{folder} has {size} modules, more than {LARGEST_FOLDER}"
        for folder, size in sizes.items()
        if size > LARGEST_FOLDER
    )


def test_a_class_name_stands_in_one_module() -> None:
    """Who searches for a class finds the one that was meant."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(module.name)
    assert_none(
        f"{name} is a class in {', '.join(sorted(names))}"
        for name, names in places.items()
        if len(names) > 1
    )


# --- words ----------------------------------------------------------------------------------


def test_texts_use_the_fields_words() -> None:
    """A metaphor is a word more to learn; engineers of this field know its own."""
    assert_none(
        f"{path.relative_to(ROOT)}:{number} write {banned.use}: {line.strip()[:80]}"
        for path in worded_texts()
        for banned in NOWHERE
        for number, line in banned.lines_of(path.read_text())
    )


def test_an_execution_is_called_execution() -> None:
    """One word for one thing: a reader looks for the difference between two."""
    assert_none(
        f"{path.relative_to(ROOT)}:{number} write {EXECUTION.use}: {line.strip()[:80]}"
        for path in worded_texts()
        for number, line in EXECUTION.lines_of(path.read_text())
    )


def test_names_use_the_fields_words() -> None:
    """What is a good word in a sentence may say nothing as a name."""
    assert_none(
        f"{path.relative_to(ROOT)}:{line} name {name} after {banned.use}"
        for path, tree in syntax_trees()
        for line, name in [(1, path.stem), *names_in(tree)]
        for banned in NOT_IN_NAMES
        if banned.found_in(name)
    )


def test_docstrings_begin_with_what_is_said() -> None:
    """A reader skims the first words: "Return the tasks that…", "Maximum bytes of…"."""
    assert_none(
        f"{path.relative_to(ROOT)}:{line} begins otherwise than a docstring: {text[:60]}"
        for path, tree in syntax_trees()
        for line, text in docstrings_in(tree)
        if OPENINGS.match(text)
    )


def test_test_names_fit_in_a_report() -> None:
    """A test is named after what holds: a longer name is two tests, or a story."""
    assert_none(
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {len(node.name)} characters"
        for path, tree in syntax_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > LONGEST_TEST_NAME
    )


# --- everything that is committed -----------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"\b(TODO|FIXME|XXX|HACK)\b", "what is left to do is tracked, or done"),
        (r"pypi\.org|pythonhosted\.org|--(extra-)?index-url", "everyone uses their own registry"),
        (r"(?<![\w.~-])/(work|root|home/\w+|Users/\w+)/", "no other machine has this path"),
        (r"(?i)\b(issue|pull request|ticket) #", "text explains itself, wherever it is read"),
    ],
)
def test_committed_text_is_free_of(pattern: str, reason: str) -> None:
    """A checkout must mean the same on every machine, and years from now."""
    assert_none(
        f"{path.relative_to(ROOT)}:{number} {reason}: {line.strip()[:80]}"
        for path in committed_texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    )


# --- how the rules look at the code ---------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """One source file of Mainspring."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return room_of(self.name)

    def where(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"

    def imports(self) -> Iterator[tuple[int, str]]:
        """Every import, wherever it stands, as line and full dotted name."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)

    def own_imports(self) -> Iterator[tuple[int, str]]:
        """The imports of Mainspring's modules, a name in a module counting as the module."""
        for line, target in self.imports():
            if target.partition(".")[0] == "mainspring":
                known = target if target in module_names() else target.rpartition(".")[0]
                yield line, known or target

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        if self.path.name == "__init__.py":
            package.append("__init__")
        return ".".join([*package[: -node.level], *filter(None, [node.module])])


@cache
def modules() -> tuple[Module, ...]:
    return tuple(
        Module(path, module_name(path), text := path.read_text(), ast.parse(text))
        for path in sorted(SOURCE.rglob("*.py"))
    )


@cache
def module_names() -> frozenset[str]:
    return frozenset(module.name for module in modules())


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(name: str) -> str:
    return [*name.split("."), "__init__"][1]


def is_pure(target: str) -> bool:
    """Whether an imported name is ours (another rule's business) or on the list of pure ones."""
    parents = {target, target.rpartition(".")[0], target.partition(".")[0]}
    return bool(parents & (PURE_LIBRARY | PURE_PACKAGES | {"mainspring"})) or target in PURE_NAMES


def uses(names: set[str], allowed: set[str]) -> Iterator[str]:
    """Where one of these dotted names is used or imported outside the rooms allowed."""
    for module in modules():
        if module.room in allowed:
            continue
        for line, target in module.imports():
            if target in names:
                yield f"{module.where(line)} imports {target}"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) in names:
                yield f"{module.where(node.lineno)} uses {ast.unparse(node)}"


def committed_texts() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT).parts
        if path in TEXT_EXEMPT or NOT_COMMITTED.intersection(inside) or not path.is_file():
            continue
        if not any(part.endswith(("_cache", ".egg-info")) for part in inside) and is_text(path):
            yield path


def worded_texts() -> Iterator[Path]:
    """The texts that people read: code, queries, scripts and documents."""
    for path in committed_texts():
        read = path.suffix in (".py", ".sql", ".md") or path == ROOT / "dev"
        if read and path not in HISTORY:
            yield path


@cache
def syntax_trees() -> tuple[tuple[Path, ast.Module], ...]:
    """Every Python module of the checkout, parsed."""
    return tuple(
        (path, ast.parse(path.read_text()))
        for path in committed_texts()
        if path.suffix == ".py" and path not in TEXT_EXEMPT
    )


def is_text(path: Path) -> bool:
    try:
        path.read_text()
    except UnicodeDecodeError:
        return False
    return True


def assert_none(violations: Iterable[str]) -> None:
    found = list(violations)
    assert not found, "\n" + "\n".join(found)
