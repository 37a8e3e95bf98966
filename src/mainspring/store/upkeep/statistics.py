"""Statistics for PostgreSQL's planner when many rows come at once.

Our plans are made once and kept. Where vacuum had found the table of tasks empty they are made for
one row: good enough for a few hundred, and then a batch arrives.
"""

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database

SQL = queries.load("statistics")
BULK_ROWS = 1000
"""Rows at once from which on the planner may not know of them."""


async def analyze_if_grown(database: Database, added: int = 0) -> bool:
    """Analyze the table of tasks if the planner thinks it far smaller than it is, for example
    because `added` rows just came. Return whether that helped."""
    if not await _is_stale(database, added):
        return False
    await SQL["analyze_now"].run(database)
    # It is no error if that did nothing: vacuum is at work, or another role owns the table.
    return not await _is_stale(database, added)


async def _is_stale(database: Database, added: int) -> bool:
    return bool(await SQL["statistics_are_stale"].value_or_none(database, bool, added=added))
