"""What an owner holds in memory: metadata of near tasks, capped, so that memory does not grow with
the backlog.

Tasks that differ only in their due time form a stream. Of a stream at most `stream_cap` tasks are
held, and a tenant that holds `tenant_cap` in a partition may open no further stream there; what
does not fit stays in the database. The earliest due time that was turned away is remembered, and
when half of the room is free again the window asks for more from there on.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from mainspring.domain.rows import StreamKey, TaskRow, stream_of
from mainspring.engine.entry import Entry


@dataclass(frozen=True, slots=True)
class Refill:
    """A request to load more of a stream, from a due time on, without what is known already.

    For a whole tenant in a partition (a stream without a queue) the partition is to be read anew,
    a few of every stream: going on from a due time could bring streams that are full only.
    """

    stream: StreamKey
    since: float
    known: Collection[UUID]
    limit: int


_Key = tuple[int, int, str | None, str | None, str | None, int | None]
"""A StreamKey, or what equals one: making one for every look-up would cost more than looking."""


class _Room:
    """The room of one stream, or of a tenant in a partition."""

    __slots__ = ("cap", "entries", "key", "loading", "turned_away")

    def __init__(self, key: StreamKey, cap: int) -> None:
        self.key = key
        self.cap = cap
        self.entries: set[UUID] = set()
        self.turned_away: float | None = None
        self.loading = False

    @property
    def full(self) -> bool:
        return len(self.entries) >= self.cap

    @property
    def hungry(self) -> bool:
        return (
            self.turned_away is not None and not self.loading and len(self.entries) * 2 <= self.cap
        )

    @property
    def unused(self) -> bool:
        return not self.entries and not self.loading and self.turned_away is None

    def turn_away(self, due: float) -> None:
        self.turned_away = due if self.turned_away is None else min(due, self.turned_away)


class Window:
    """The waiting tasks of all partitions a node owns."""

    def __init__(self, *, stream_cap: int, tenant_cap: int) -> None:
        self._stream_cap = stream_cap
        self._tenant_cap = tenant_cap
        self._entries: dict[UUID, Entry] = {}
        self._rooms: dict[_Key, _Room] = {}
        self._hungry: dict[StreamKey, None] = {}  # a set that keeps its order

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, task_id: UUID) -> Entry | None:
        return self._entries.get(task_id)

    def admit(self, row: TaskRow, deadline: float) -> Entry | None:
        """Take a task in, or turn it away when there is no room: then it will be loaded later."""
        partition, tenant_id = row.partition, row.tenant_id
        tenant = self._room((partition, tenant_id, None, None, None, None), self._tenant_cap)
        key = row.concurrency_key
        stream = (partition, tenant_id, row.queue, row.capability, key, row.priority)
        room = self._rooms.get(stream)
        if room is None and tenant.full:
            tenant.turn_away(row.due)
            return None
        room = room or self._room(stream, self._stream_cap)
        if room.full:
            room.turn_away(row.due)
            return None
        entry = self._entries[row.id] = Entry(row, room.key, deadline)
        room.entries.add(row.id)
        tenant.entries.add(row.id)
        return entry

    def crowded(self, row: TaskRow) -> bool:
        """Whether tasks like this one had to be turned away."""
        rooms = (
            self._rooms.get(stream_of(row)),
            self._rooms.get(StreamKey(row.partition, row.tenant_id)),
        )
        return any(
            room is not None and (room.loading or room.turned_away is not None) for room in rooms
        )

    def remove(self, entry: Entry) -> None:
        """Let a task go; that may make its stream, or its tenant, hungry."""
        task_id, stream = entry.row.id, entry.stream
        del self._entries[task_id]
        for key in (stream, (stream.partition, stream.tenant_id, None, None, None, None)):
            room = self._rooms[key]
            room.entries.discard(task_id)
            self._review(room)

    def remove_partitions(self, partitions: Collection[int]) -> list[Entry]:
        """Let everything of some partitions go; answers what was there."""
        gone = [entry for entry in self if entry.row.partition in partitions]
        for entry in gone:
            del self._entries[entry.row.id]
        for room in [room for room in self._rooms.values() if room.key.partition in partitions]:
            del self._rooms[room.key]
            self._hungry.pop(room.key, None)
        return gone

    @property
    def hungry(self) -> bool:
        return bool(self._hungry)

    def refills(self) -> list[Refill]:
        """What to load now. Each must be answered by `refilled` or `not_refilled`."""
        wanted = []
        for key in self._hungry:
            room = self._rooms[key]
            if not room.hungry:
                continue  # it was filled by other ways meanwhile; what it turned away is remembered
            assert room.turned_away is not None
            wanted.append(
                Refill(key, room.turned_away, set(room.entries), room.cap - len(room.entries))
            )
            room.turned_away, room.loading = None, True
        self._hungry.clear()
        return wanted

    def refilled(self, refill: Refill, rows: Sequence[TaskRow]) -> None:
        """A refill was loaded, and its rows were offered to `admit` already."""
        room = self._rooms.get(refill.stream)
        if room is None:
            return
        room.loading = False
        if len(rows) == refill.limit and refill.stream.queue is not None:
            room.turn_away(rows[-1].due)
        self._review(room)

    def not_refilled(self, refill: Refill) -> None:
        """A refill failed: ask again."""
        room = self._rooms.get(refill.stream)
        if room is None:
            return
        room.loading = False
        room.turn_away(refill.since)
        self._review(room)

    def _room(self, key: _Key, cap: int) -> _Room:
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = _Room(StreamKey(*key), cap)
        return room

    def _review(self, room: _Room) -> None:
        if room.turned_away is not None:
            if room.hungry:
                self._hungry[room.key] = None
        elif room.unused:
            del self._rooms[room.key]
