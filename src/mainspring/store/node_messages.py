"""Messages between nodes, by way of the database: each may be lost, none comes twice."""

from collections.abc import Sequence
from uuid import UUID

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store

SQL = queries.load("node_messages")


class MessageStore(Store):
    """A mailbox per node."""

    async def post(self, messages: Sequence[tuple[UUID, bytes]]) -> None:
        """Leave messages for nodes, and give each a hint to look."""
        await SQL["post_messages"].run(
            self._database,
            node_ids=[node for node, _ in messages],
            bodies=[body for _, body in messages],
        )

    async def collect(self, node_id: UUID) -> list[bytes]:
        """Take what was left for a node, the oldest first."""
        rows = await SQL["collect_messages"].fetch(self._database, node_id=node_id)
        return [row["body"] for row in sorted(rows, key=lambda row: row["id"])]
