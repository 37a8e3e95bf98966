"""The window: metadata of near tasks that an owner holds in memory, capped, so that memory does not
grow with the backlog.

Tasks that differ only in their due time form a stream. The window holds the front of each: what is
due before everything that was turned away. A stream has room for `stream_cap` tasks; a tenant with
many streams in a partition has `tenant_cap` to divide among them, so that streams nobody can run
leave room for others. What does not fit stays in the database. The earliest due time that was
turned away is remembered, and when half of the room is free again the window asks for more from
there on.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from mainspring.domain.rows import StreamKey, TaskRow, stream_of
from mainspring.engine.entry import Entry, Phase
from mainspring.engine.gates import expired

_FEWEST = 4
"""However many streams there are: asking for each task apart would take a round trip per task."""


class Refill(NamedTuple):
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


class _Limited:
    """A limited number of things, and whether more had to be turned away."""

    __slots__ = ("_most", "key", "loading", "turned_away")
    held: Collection[object]

    def __init__(self, key: StreamKey, most: int) -> None:
        self.key = key
        self._most = most
        self.turned_away: float | None = None
        self.loading = False

    @property
    def cap(self) -> int:
        return self._most

    @property
    def full(self) -> bool:
        return len(self.held) >= self.cap

    @property
    def wants_more(self) -> bool:
        return self.turned_away is not None and not self.loading and len(self.held) * 2 <= self.cap

    @property
    def unused(self) -> bool:
        return not self.held and not self.loading and self.turned_away is None

    def turn_away(self, due: float) -> None:
        self.turned_away = due if self.turned_away is None else min(due, self.turned_away)


class _TenantWindow(_Limited):
    """The streams of one tenant in one partition."""

    __slots__ = ("held", "share")

    def __init__(self, key: StreamKey, most: int) -> None:
        super().__init__(key, most)
        self.held: set[StreamKey] = set()
        self.share = most
        """How many tasks each of its streams may hold."""

    def divide(self) -> None:
        """Share the room anew, after a stream was opened or closed."""
        self.share = max(_FEWEST, self._most // max(1, len(self.held)))


class _Stream(_Limited):
    """The tasks of one stream."""

    __slots__ = ("held", "tenant")

    def __init__(self, key: StreamKey, most: int, tenant: _TenantWindow) -> None:
        super().__init__(key, most)
        self.tenant = tenant
        self.held: dict[UUID, Entry] = {}

    @property
    def cap(self) -> int:
        return min(self._most, self.tenant.share)

    def is_behind(self, due: float) -> bool:
        """Whether others were turned away that are due before this: they have to come first."""
        return self.turned_away is not None and due >= self.turned_away

    def last(self) -> Entry | None:
        """Return the last task that is not being claimed: it makes room for an earlier one."""
        waiting = (entry for entry in self.held.values() if entry.phase is not Phase.CLAIMING)
        return max(waiting, key=lambda entry: entry.row.due, default=None)


class Window:
    """The waiting tasks of all partitions a node owns."""

    def __init__(self, *, stream_cap: int, tenant_cap: int) -> None:
        self._stream_cap = stream_cap
        self._tenant_cap = tenant_cap
        self._entries: dict[UUID, Entry] = {}
        self._streams: dict[_Key, _Stream] = {}
        self._tenants: dict[tuple[int, int], _TenantWindow] = {}
        self._low: dict[_Limited, None] = {}  # a set that keeps its order
        self._displaced: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, task_id: UUID) -> Entry | None:
        return self._entries.get(task_id)

    def is_claiming(self, task_id: UUID) -> bool:
        """Whether a claim of the task is on its way to the database, or back."""
        entry = self._entries.get(task_id)
        return entry is not None and entry.phase is Phase.CLAIMING

    def expired_in(self, partitions: Collection[int], now: float) -> list[tuple[int, UUID]]:
        """Return tasks that wait in partitions after their expiry, to compare with the database."""
        rows = (e.row for e in self if e.row.partition in partitions and expired(e, now))
        return [(row.tenant_id, row.id) for row in rows]

    def admit(self, row: TaskRow, deadline: float) -> Entry | None:
        """Take a task in, or turn it away when there is no room: then it will be loaded later."""
        key = (
            row.partition, row.tenant_id, row.queue, row.capability, row.concurrency_key,
            row.priority,
        )  # fmt: skip
        stream = self._streams.get(key) or self._open(row)
        if stream is None:
            return None
        if stream.is_behind(row.due) or (stream.full and not self._displace(stream, row.due)):
            stream.turn_away(row.due)
            return None
        entry = Entry(row, stream.key, deadline)
        entry.was_turned_away = stream.loading or stream.tenant.loading
        self._entries[row.id] = stream.held[row.id] = entry
        return entry

    def displaced(self) -> list[Entry]:
        """Return tasks that had to make room since the last call: they are removed already."""
        displaced, self._displaced = self._displaced, []
        return displaced

    def _displace(self, stream: _Stream, due: float) -> bool:
        """Let the last task of a full stream go for one that is due before it."""
        last = stream.last()
        if last is None or last.row.due <= due:
            return False
        stream.turn_away(last.row.due)
        self.remove(last)
        self._displaced.append(last)
        return True

    def turned_away(self, row: TaskRow) -> bool:
        """Whether tasks like this one had to be turned away."""
        both = (stream_of(row), StreamKey(row.partition, row.tenant_id))
        found = filter(None, map(self._find, both))
        return any(limited.loading or limited.turned_away is not None for limited in found)

    def remove(self, entry: Entry) -> None:
        """Remove a task; its stream, or its tenant, may run low by that."""
        del self._entries[entry.row.id]
        stream = self._streams[entry.stream]
        del stream.held[entry.row.id]
        self._review(stream)

    def remove_partitions(self, partitions: Collection[int]) -> list[Entry]:
        """Remove and return the tasks of some partitions."""
        gone = [entry for entry in self if entry.row.partition in partitions]
        for entry in gone:
            del self._entries[entry.row.id]
        for stream in [s for s in self._streams.values() if s.key.partition in partitions]:
            del self._streams[stream.key]
            self._low.pop(stream, None)
        for tenant in [t for t in self._tenants.values() if t.key.partition in partitions]:
            del self._tenants[tenant.key.partition, tenant.key.tenant_id]
            self._low.pop(tenant, None)
        return gone

    @property
    def wants_more(self) -> bool:
        return bool(self._low)

    def refills(self) -> list[Refill]:
        """Return what to load now. `refilled` or `not_refilled` must follow for each."""
        wanted = []
        for found in self._low:
            if not found.wants_more:
                continue  # it was filled by other ways meanwhile; what it turned away is remembered
            assert found.turned_away is not None
            known = set(found.held) if isinstance(found, _Stream) else set[UUID]()
            room = found.cap - len(found.held)
            wanted.append(Refill(found.key, found.turned_away, known, room))
            found.turned_away, found.loading = None, True
        self._low.clear()
        return wanted

    def refilled(self, refill: Refill, rows: Sequence[TaskRow]) -> None:
        """End a refill whose rows were offered to `admit` already."""
        full = refill.stream.queue is not None and len(rows) == refill.limit
        self._end_refill(refill, rows[-1].due if full else None)

    def not_refilled(self, refill: Refill) -> None:
        """End a refill that failed: it is asked for again."""
        self._end_refill(refill, refill.since)

    def _end_refill(self, refill: Refill, turned_away: float | None) -> None:
        found = self._find(refill.stream)
        if found is not None:
            found.loading = False
            if turned_away is not None:
                found.turn_away(turned_away)
            self._review(found)

    def _open(self, row: TaskRow) -> _Stream | None:
        """Make room for a stream, unless its tenant has too many."""
        partition, tenant_id = row.partition, row.tenant_id
        tenant = self._tenants.get((partition, tenant_id))
        if tenant is None:
            tenant = _TenantWindow(StreamKey(partition, tenant_id), self._tenant_cap)
            self._tenants[partition, tenant_id] = tenant
        if tenant.full:
            tenant.turn_away(row.due)
            return None
        key = stream_of(row)
        tenant.held.add(key)
        tenant.divide()
        stream = self._streams[key] = _Stream(key, self._stream_cap, tenant)
        return stream

    def _find(self, key: StreamKey) -> _Limited | None:
        if key.queue is None:
            return self._tenants.get((key.partition, key.tenant_id))
        return self._streams.get(key)

    def _review(self, found: _Limited) -> None:
        if found.wants_more:
            self._low[found] = None
        elif found.unused:
            self._close(found)

    def _close(self, found: _Limited) -> None:
        key = found.key
        if isinstance(found, _Stream):
            del self._streams[key]
            found.tenant.held.discard(key)
            found.tenant.divide()
            self._review(found.tenant)
        else:
            del self._tenants[key.partition, key.tenant_id]
