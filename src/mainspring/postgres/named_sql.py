"""Named SQL: every statement lives in queries/*.sql under a `-- name:` line."""

from importlib import resources


def load(file: str) -> dict[str, str]:
    """All statements of one file, by name."""
    text = resources.files("mainspring.store").joinpath("queries", f"{file}.sql").read_text("utf-8")
    _preamble, *sections = text.split("-- name: ")
    statements = {}
    for section in sections:
        name, _, sql = section.partition("\n")
        statements[name.strip()] = f"-- {name.strip()}\n{sql.strip().removesuffix(';')}"
    return statements
