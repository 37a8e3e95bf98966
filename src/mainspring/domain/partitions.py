"""Which partition a task belongs to: one definition, here and in SQL (`partition_of`).

A tenant's tasks lie in `spread` evenly spaced partitions, starting at one that depends on the
tenant. Without limits the spread is all of them; with limits it is small, so that few owners (one
by default) count what is running. Tasks with the same affinity always meet in one partition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

PARTITIONS = 256


def partition_of(tenant_id: int, task_id: UUID, concurrency_key: str | None, spread: int) -> int:
    """Return the partition of a task, by its concurrency key or else by the last, random byte of
    its id."""
    if concurrency_key is None:
        share = task_id.bytes[15]
    else:
        share = sha256(f"{tenant_id}:{concurrency_key}".encode()).digest()[0]
    return (tenant_id * 167 + share % spread * (PARTITIONS // spread)) % PARTITIONS


def preferred_owner(partition: int, nodes: Sequence[UUID]) -> UUID:
    """Return the owner by rendezvous hashing: only the share of a node that comes or goes moves."""
    return max(nodes, key=lambda node: sha256(f"{partition}:{node}".encode()).digest())


@dataclass(frozen=True, slots=True)
class Ownership:
    """A node's right to act for its partitions: void as soon as its row carries another epoch."""

    node_id: UUID
    epoch: int
    partitions: frozenset[int]
    beats: int = 0
    """How many of its heartbeats the database has counted at least. It counts fewer when it was
    set back: then nothing that the node believes about rows holds."""


NO_OWNERSHIP = Ownership(UUID(int=0), 0, frozenset())
"""For writes that leave a wake row in every case: their owner hears of them even if the answer is
lost, and the writer cannot announce them."""
