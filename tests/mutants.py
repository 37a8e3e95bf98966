"""Take the guards out of the SQL, one at a time, and see tests of the store fail.

A predicate nobody misses is either superfluous or untested. `./dev mutants` lists every condition
that speaks of a fence, a rev, a state, a time, a lease or an owner, and names those whose removal
no test noticed. Queries are broken in a copy of the sources: the checkout stays as it is.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUERIES = Path("src/mainspring/store/queries")
FILES = {
    "claims": (
        "contract/test_store_fences",
        "contract/test_store_claims",
        "contract/test_store_windows",
    ),
    "outcomes": (
        "contract/test_store_fences",
        "contract/test_store_outcomes",
        "contract/test_store_claims",
        "contract/test_store_lateness",
        "contract/test_store_losses",
    ),
    "leases": (
        "contract/test_store_fences",
        "contract/test_store_leases",
        "integration/test_node_outcomes",
    ),
    "cluster": (
        "contract/test_store_cluster",
        "integration/test_node_housekeeping",
        "integration/test_api_schedules",
    ),
    "housekeeping": ("integration/test_node_housekeeping", "integration/test_api_effects"),
    "tasks": (
        "contract/test_store_fences",
        "contract/test_store_tasks",
        "contract/test_store_eager_leases",
        "integration/test_node_outcomes",
        "integration/test_api_tasks",
        "integration/test_api_workflow_runs",
    ),
}
"""Which queries are broken, and the tests that should notice first."""
OTHERS = ("contract", "integration/test_workflow_steps")
"""Those asked about what these let pass."""

_PLACES = "newer servers notice by themselves that a row has left its place"
IMPLIED = {
    "claims.claimed_by: state = 'running'": "only what is running has a worker",
    "outcomes.expire_leases: t.state = 'running'": "only what is running has a lease",
    "claims.load_more: NOT parked": "the state says so, too; this names the index",
    "outcomes.expire_leases: (e.cancel_requested OR e.poison)": "the others were changed before",
    "leases.claimed_for_workers: t.state = 'running'": "only what is running has a worker",
    "leases.extend_for_worker: t.state = 'running'": "only what is running has a worker",
    "leases.held_by_workers: t.state = 'running'": "only what is running has an incarnation",
    "leases.leased_tasks: t.state = 'running'": "only what is running has an incarnation",
    "housekeeping.forget_expired: expires_at < clock_timestamp()": _PLACES,
}
"""Conditions that others imply: they say what is meant, and no test can miss them."""

_GUARD = re.compile(
    r"\b(fence|rev|state|due_at|epoch|expires_at|lease_until|cancel_requested|incarnation|parked"
    r"|node_id|owner|worker|partition|nodes|node|due|partition_of|max_running|started_at|lateness"
    r"|began|began_alone|counted|losses|unproven_losses|server_started|beats|changed)\b"
)
_PARAMETER = re.compile(r"(?<!:):[a-z_]\w*")
_TOKEN = re.compile(
    r"--[^\n]*|'[^']*'|\(|\)|;"
    r"|\b(?:WHERE|AND|OR|ON|RETURNING|ORDER|FOR|GROUP|LIMIT|UNION|THEN|ELSE|END|JOIN|LEFT|CROSS"
    r"|BETWEEN|CASE|WHEN|SET|FROM)\b",
)
_ENDS = {"AND", "OR", "RETURNING", "ORDER", "GROUP", "LIMIT", "UNION", "JOIN", "LEFT", "CROSS"}
_ENDS |= {"WHERE", "FOR", ";"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A condition, and where it stands."""

    file: str
    statement: str
    start: int
    end: int
    text: str

    def broken(self, source: str) -> str:
        # Still named: without its parameters the statement could not even be prepared.
        condition = source[self.start : self.end]
        return f"{source[: self.start]} ({condition}\nOR true) {source[self.end :]}"

    def __str__(self) -> str:
        return f"{self.file}.{self.statement}: {' '.join(self.text.split())}"


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every guard among the conditions of WHERE and ON."""
    names = [(found.start(), found[1]) for found in re.finditer(r"^-- name: (\w+)", source, re.M)]
    for start, end in _conditions(source):
        text = re.sub(r"--[^\n]*", "", source[start:end]).strip()
        statement = [name for at, name in names if at < start]
        guards = _GUARD.search(_PARAMETER.sub("", text))
        if statement and guards and not text.startswith("CONFLICT"):
            yield Mutant(file, statement[-1], start, end, text)


def _conditions(source: str) -> Iterator[tuple[int, int]]:
    """Where conditions begin and end. A condition in brackets counts as one, and what is inside of
    it counts again if it is a query of its own."""
    open_at: list[int | None] = [None]
    for token in _TOKEN.finditer(source):
        word = token[0]
        if word.startswith(("--", "'")):
            continue
        began = open_at[-1]
        if word == "(":
            open_at.append(None)
        elif word == ")" or word in _ENDS:
            if began is not None:
                yield began, token.start()
            open_at[-1] = None
            if word == ")":
                open_at.pop()
            elif word == "WHERE" or (word == "AND" and began is not None):
                open_at[-1] = token.end()
        elif word == "ON":
            open_at[-1] = token.end()


def survives(mutant: Mutant, sources: Path) -> bool:
    """Whether the tests pass without this condition."""
    path = sources / QUERIES.relative_to("src") / f"{mutant.file}.sql"
    whole = path.read_text()
    path.write_text(mutant.broken(whole))
    try:
        return passes(FILES[mutant.file], sources) and passes(OTHERS, sources)
    finally:
        path.write_text(whole)


def passes(tests: Sequence[str], sources: Path) -> bool:
    """Whether these tests pass; where they cannot even be run, nothing can be said."""
    paths = [f"tests/{name}.py" if "/" in name else f"tests/{name}" for name in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    tested = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, check=False, text=True
    )
    if tested.returncode not in (0, 1):
        sys.exit(f"the tests could not be run:\n{tested.stdout}{tested.stderr}")
    return tested.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="./dev mutants")
    parser.add_argument("files", nargs="*", default=FILES, help=", ".join(FILES))
    parser.add_argument("--only", default="", metavar="TEXT", help="conditions that contain it")
    parser.add_argument("--list", action="store_true", help="name the conditions, break nothing")
    arguments = parser.parse_args()
    found = [
        mutant
        for file in arguments.files
        for mutant in mutants(file, (ROOT / QUERIES / f"{file}.sql").read_text())
        if str(mutant) not in IMPLIED and arguments.only in str(mutant)
    ]
    if arguments.list:
        print(*found, sep="\n")
        return 0
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        sources = Path(directory, "src")
        shutil.copytree(ROOT / "src", sources)
        if not all(passes(FILES[file], sources) for file in arguments.files):
            sys.exit("the tests fail before anything is broken")
        for number, mutant in enumerate(found, 1):
            lives = survives(mutant, sources)
            missed += lives
            verdict = "SURVIVED" if lives else "caught"
            print(f"{number}/{len(found)} {verdict:8} {mutant}", flush=True)
    print(f"{len(found) - missed} of {len(found)} caught; {len(IMPLIED)} left out:")
    print(*(f"  {condition} ({why})" for condition, why in IMPLIED.items()), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
