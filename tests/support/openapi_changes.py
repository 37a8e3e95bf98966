"""How the API's description differs from an earlier one, each kind of difference once.

curl http://127.0.0.1:7070/openapi.json > before.json      # at the earlier version
.venv/bin/python tests/support/openapi_changes.py before.json
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.routes import document

_ABSENT = "(absent)"
_TEXTS = ("description", "summary", "detail")


def changes(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each place that differs, with its two values; of texts only what kind of text it is."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from changes(before.get(key, _ABSENT), after.get(key, _ABSENT), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from changes(one, other, f"{path}/{number}")
    elif before != after:
        text = path.rsplit("/", 1)[-1]
        yield text if text in _TEXTS else path, before, after


def main() -> int:
    before = msgspec.json.decode(Path(sys.argv[1]).read_bytes())
    after = document()
    for unlike in (before, after):
        unlike["info"].pop("version", None)
    found = Counter(
        (path, *(msgspec.json.encode(value).decode() for value in values))
        for path, *values in changes(before, after)
    )
    for (path, old, new), times in sorted(found.items()):
        print(f"{times} x {path}\n  - {old}\n  + {new}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
