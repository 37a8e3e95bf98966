"""A cluster of real nodes on one database: black boxes that tests feed, kill and freeze."""

import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Self

import aiohttp

from mainspring.domain.partitions import PARTITIONS
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.keys import KeyStore, NewKey
from mainspring.store.tenants import TenantStore
from support.client import Client
from support.evidence import Evidence
from support.process import START_WITHIN, MainspringProcess
from support.waiting import eventually

SCOPES = frozenset({"read", "write", "work", "admin"})

NOTHING: Mapping[str, str] = MappingProxyType({})
QUICK: Mapping[str, object] = MappingProxyType(
    {
        "port": 0,
        "heartbeat": 0.25,
        "node_ttl": 1.2,
        "lease": 3,
        "worker_lease": 3,
        "grace": 5,
        "log_format": "json",
    }
)
"""Settings that let faults show, and heal, within seconds."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant and a key of it with all scopes."""

    id: int
    key: str


class Node:
    """One server process."""

    def __init__(
        self, name: str, process: MainspringProcess, session: aiohttp.ClientSession
    ) -> None:
        self.name = name
        self._process = process
        self._session = session
        self._url: str | None = None

    @property
    def alive(self) -> bool:
        return self._process.alive

    @property
    def url(self) -> str:
        assert self._url is not None, "the node has not said where it listens"
        return self._url

    def client(self, tenant: Tenant) -> Client:
        return Client(self._session, self.url, tenant.key)

    def output(self) -> str:
        return self._process.output()

    def kill(self) -> None:
        self._process.kill()

    def freeze(self) -> None:
        """SIGSTOP: alive, but silent, and unaware of it."""
        self._process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: the polite way."""
        self._process.signal(signal.SIGTERM)

    async def ended(self, within: float = 30.0) -> int:
        return await self._process.ended(within)

    async def listening(self) -> None:
        """Wait until it says where it listens."""
        await eventually(self._has_url, within=START_WITHIN, what="the node listens")

    async def ready(self) -> None:
        """Wait until it owns partitions and has loaded them."""
        await self.listening()
        await eventually(self.is_ready, within=START_WITHIN, what="the node is ready")

    async def _has_url(self) -> bool:
        assert self.alive, f"the node ended at its start:\n{self.output()}"
        for line in self.output().splitlines():
            if line.startswith("mainspring listens on "):
                self._url = line.split()[-1]
        return self._url is not None

    async def is_ready(self) -> bool:
        try:
            async with self._session.get(f"{self.url}/readyz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


class Cluster:
    """Starts nodes on a migrated database, and leaves none behind."""

    def __init__(
        self, database_url: str, directory: Path, settings: Mapping[str, object] = QUICK
    ) -> None:
        self.database_url = database_url
        self._directory = directory
        self._settings = settings
        self._numbers = count(1)
        self._processes: dict[str, MainspringProcess] = {}
        self._database = Database(DatabaseOptions(database_url, connections=2))
        self.keys = KeyStore(self._database)
        self.tenants = TenantStore(self._database)
        self.evidence = Evidence(self._database)

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=30)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        await self._database.open()
        return self

    async def __aexit__(self, *_problem: object) -> None:
        for name, process in self._processes.items():
            process.kill()
            print(f"--- {name} ---\n{process.output()}")
        await self._session.close()
        await self._database.close()

    async def tenant(self, name: str = "acme") -> Tenant:
        """A tenant of that name with a new key."""
        tenant_id = await self.keys.ensure_tenant(name)
        secret = f"ms_{secrets.token_urlsafe(16)}"
        await self.keys.add(NewKey(f"key-{secret[3:11]}", secret, tenant_id, SCOPES))
        return Tenant(tenant_id, secret)

    async def operator(self) -> Tenant:
        """An operator's key that also belongs to a tenant."""
        tenant_id = await self.keys.ensure_tenant("operators")
        secret = f"ms_{secrets.token_urlsafe(16)}"
        await self.keys.add(NewKey(f"key-{secret[3:11]}", secret, tenant_id, SCOPES, operator=True))
        return Tenant(tenant_id, secret)

    def spawn(self, environment: Mapping[str, str] = NOTHING, /, **settings: object) -> Node:
        """Start a node and do not wait for it."""
        name = f"node-{next(self._numbers)}"
        wanted = {
            "database_url": self.database_url,
            "node_name": name,
            **self._settings,
            **settings,
        }
        variables = {f"MAINSPRING_{key.upper()}": str(value) for key, value in wanted.items()}
        process = MainspringProcess(
            self._directory / f"{name}.log",
            "server",
            environment={**variables, **environment},
        )
        self._processes[name] = process
        return Node(name, process, self._session)

    async def start(self, environment: Mapping[str, str] = NOTHING, /, **settings: object) -> Node:
        """Start a node and wait until it is ready."""
        node = self.spawn(environment, **settings)
        await node.ready()
        return node

    async def partitions_of(self, node: Node) -> set[int]:
        """What a node owns, by the database's word."""
        rows = await self.evidence.rows(
            "SELECT partition FROM partitions p JOIN nodes n ON n.id = p.owner"
            " WHERE n.name = $1 AND n.state = 'active'",
            node.name,
        )
        return {row["partition"] for row in rows}

    async def balanced(self, *nodes: Node) -> None:
        """Wait until these nodes own everything among them, each a share, and act for it."""

        async def shared() -> bool:
            shares = [await self.partitions_of(node) for node in nodes]
            loaded = [await node.is_ready() for node in nodes]
            return all(shares) and sum(map(len, shares)) == PARTITIONS and all(loaded)

        await eventually(shared, within=START_WITHIN, what="the partitions are shared out")

    async def pair(self, **settings: object) -> tuple[Node, Node]:
        """Two nodes that share the partitions."""
        first, second = self.spawn(NOTHING, **settings), self.spawn(NOTHING, **settings)
        await first.ready()
        await second.ready()
        await self.balanced(first, second)
        return first, second

    async def metric(self, node: Node, name: str) -> float:
        """The sum of a metric's samples at a node."""
        answer = await node.client(await self.operator()).get("/metrics")
        assert answer.status == 200, answer
        lines = answer.body.decode().splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith(f"mainspring_{name}")
        )
