"""Telling PostgreSQL's planner of crowds that it does not know of.

Our plans are made once and kept. Where vacuum had found the table of tasks empty they are made for
one row: good enough for a few hundred, and then a batch arrives.
"""

from mainspring.store import queries
from mainspring.store.database import Database

SQL = queries.load("planner")
CROWD = 1000
"""So many rows at once are worth asking whether the planner knows."""


async def tell_the_planner(database: Database, crowd: int = 0) -> bool:
    """Of tasks that it does not know of, such as the `crowd` that just came; answers whether there
    were many."""
    row = await database.fetch_row(SQL["crowd_is_news"], crowd)
    if row is None or not row["news"]:
        return False
    await database.fetch(SQL["tell_of_crowd"])
    return True
