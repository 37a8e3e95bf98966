"""What we change in the driver is there to be changed."""

import asyncpg.protocol.protocol as driver

from mainspring.postgres import database


def test_the_driver_asks_for_containers_by_their_kind() -> None:
    """If this fails, the driver has changed: arrays are encoded as before, only slowly."""
    found = {getattr(driver, name) for name in ("IterableABC", "SizedABC")}
    assert found == {database.CONTAINERS}
