"""Telling PostgreSQL's planner of crowds that it does not know of.

Our plans are made once and kept. Where vacuum had found the table of tasks empty they are made for
one row: good enough for a few hundred, and then a batch arrives.
"""

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database

SQL = queries.load("planner")
BULK_ROWS = 1000
"""From so many rows at once on it is worth asking whether the planner knows."""


async def analyze_if_grown(database: Database, crowd: int = 0) -> bool:
    """Of tasks that it does not know of, such as the `crowd` that just came; answers whether there
    were many and it knows of them now."""
    if not await _is_news(database, crowd):
        return False
    await database.fetch(*SQL["tell_of_crowd"]())
    # It is no error if that did nothing: vacuum is at work, or another role owns the table.
    return not await _is_news(database, crowd)


async def _is_news(database: Database, crowd: int) -> bool:
    row = await database.fetch_row(*SQL["crowd_is_news"](crowd=crowd))
    return row is not None and bool(row["news"])
