"""The tz database in use: the one that the lock pins, whatever the machine has."""

import zoneinfo

from tzdata import IANA_VERSION

from mainspring.domain.schedules.zones import zone


def version() -> str:
    """Return the tz database's own name of its version, such as 2026a: they sort by age."""
    return str(IANA_VERSION)


def use_pinned() -> None:
    """Read zones from the pinned package alone: nodes on different machines must agree."""
    zoneinfo.reset_tzpath(())
    zoneinfo.ZoneInfo.clear_cache()
    zone.cache_clear()
