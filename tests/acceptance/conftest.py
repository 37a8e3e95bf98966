"""What the black-box tests share: a cluster on a database of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.cluster import Cluster


@pytest.fixture
async def cluster(database_url: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """No node runs yet. At the end all are gone, and a failed test shows what they said."""
    async with Cluster(database_url, tmp_path) as made:
        yield made
