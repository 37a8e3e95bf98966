"""What a task needs of whoever runs it, as one word: the column `capability`.

    http                                   the node itself
    handler:mainspring.noop                the node itself
    handler:send_mail                      a worker that offers this handler
    command                                a worker that runs commands
    handler:train;tag=gpu;memory=512;cpu=2 one that offers this as well
    handler:train;alone                    one that holds nothing else: it was lost twice

Tasks that need the same wait in the same line, whoever asks for them: nothing that nobody can run
stands in the way of what somebody could.
"""

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from mainspring.domain.task import BUILT_IN_HANDLERS, RUN_WORKFLOW, TaskSpec

MOST_OFFERS = 16
"""Maximum of offers that are kept of one worker, whose lanes may each offer something else."""
MOST_NAMES = 10_000
"""Maximum of queues, handlers and tags in what a worker offers, as in one request."""
THERE_FOR = 15.0
"""The least of `there_for`."""

ALONE = ";alone"
"""What a capability ends with once the task was lost twice together with its worker."""

_COMMAND = "command"
_HANDLER = "handler:"
_RUN = f"{_HANDLER}{RUN_WORKFLOW}"


class Need(NamedTuple):
    """A capability taken apart."""

    word: str
    tags: frozenset[str] = frozenset()
    memory_mb: int = 0
    cpu: float = 0.0
    alone: bool = False


def capability_of(spec: TaskSpec) -> str:
    """Return the capability for a task's target and for what it requires beside it."""
    word = spec.target.capability
    requires = spec.requires
    if requires is None or not needs_worker(word):
        return word
    parts = [word, *(f"tag={quote(tag, safe='')}" for tag in sorted(set(requires.tags)))]
    if requires.memory_mb:
        parts.append(f"memory={requires.memory_mb}")
    if requires.cpu:
        parts.append(f"cpu={requires.cpu:g}")
    return ";".join(parts)


def there_for(lease: float) -> float:
    """Return the seconds for which a kind of worker counts as present after it was last heard of.
    An idle worker polls all the time; a busy one sends heartbeats at a third of its leases, which
    the first heartbeat makes twice as long."""
    return max(THERE_FOR, 2 * lease / 3 + 5.0)


@lru_cache(maxsize=4096)
def needs_worker(capability: str) -> bool:
    """Whether it takes a worker; everything else runs inside the node."""
    if capability.startswith(_HANDLER):
        return not capability.startswith(BUILT_IN_HANDLERS, len(_HANDLER))
    return capability == _COMMAND or capability.startswith(_COMMAND + ";")


def takes_slot(capability: str) -> bool:
    """Whether it takes a slot. A task that runs a workflow only waits for steps that need slots."""
    return capability != _RUN


@lru_cache(maxsize=4096)
def line_of(queue: str, capability: str) -> tuple[str, str]:
    """Return the line of a task: tasks of one line can be run by the same workers. The node runs
    any queue and any built-in handler: however many names there are, they share a line."""
    if needs_worker(capability):
        return queue, capability
    if capability.startswith(_HANDLER + BUILT_IN_HANDLERS) and takes_slot(capability):
        return "", _HANDLER + BUILT_IN_HANDLERS
    return "", capability


@lru_cache(maxsize=4096)
def need_of(capability: str) -> Need:
    """Take a capability apart."""
    word, *parts = capability.split(";")
    tags, memory, cpu, alone = set[str](), 0, 0.0, False
    for part in parts:
        name, _, value = part.partition("=")
        match name:
            case "tag":
                tags.add(unquote(value))
            case "memory":
                memory = int(value)
            case "cpu":
                cpu = float(value)
            case "alone":
                alone = True
    return Need(word, frozenset(tags), memory, cpu, alone)


class Offer(NamedTuple):
    """What a kind of worker can run. A resource it says nothing about is taken to be enough."""

    queues: frozenset[str]
    handlers: frozenset[str] = frozenset()
    commands: bool = False
    tags: frozenset[str] = frozenset()
    memory_mb: int | None = None
    cpu: float | None = None

    def suits(self, queue: str, capability: str) -> bool:
        """Whether such a worker can run tasks of this queue that need this."""
        need = need_of(capability)
        if need.word == _COMMAND:
            able = self.commands
        else:
            able = need.word.removeprefix(_HANDLER) in self.handlers
        return (
            able
            and queue in self.queues
            and need.tags <= self.tags
            and (self.memory_mb is None or need.memory_mb <= self.memory_mb)
            and (self.cpu is None or need.cpu <= self.cpu)
        )
