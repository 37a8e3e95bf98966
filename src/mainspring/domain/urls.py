"""Which URLs may be called, as far as their form goes: one rule for whoever takes one in."""

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import SplitResult, urlsplit

from mainspring.domain.task import LONGEST_URL

_AUTHORITY = re.compile(r"[A-Za-z0-9_.~:\[\]-]+")
_NUMERIC = re.compile(r"0[xX][0-9A-Fa-f]*|[0-9]+")
_LABEL = re.compile(r"[A-Za-z0-9_~-]{1,63}")


def url_problem(url: str) -> str | None:
    """Return what is wrong with a URL; None when it can be called, as far as its form goes."""
    if len(url) > LONGEST_URL:
        return f"has more than {LONGEST_URL} characters"
    if any(char <= " " or char == "\x7f" for char in url) or "\\" in url:
        return "contains a space, a control character or a backslash"
    try:
        return _parts_problem(urlsplit(url))
    except ValueError as error:
        return f"is not a URL: {error}"


def _parts_problem(parts: SplitResult) -> str | None:
    """Raise ValueError when the port is no number that a port can have."""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is not an absolute http or https URL with a host"
    if "@" in parts.netloc:
        return "contains a user name or password: use a header instead"
    if not _AUTHORITY.fullmatch(parts.netloc):
        return "has a host that is not valid (international names in their ASCII form, please)"
    return "has port 0, which is none" if parts.port == 0 else host_problem(parts.hostname)


@lru_cache(maxsize=4096)
def host_problem(host: str) -> str | None:
    """Return what is wrong with the way a host is written; None when there is one way to read it.

    Libraries disagree about 0177.1, 0x7f000001 and 2130706433: some dial 127.0.0.1. An address in
    such a form is meant to exploit that, so only the plain form is taken.
    """
    if ":" in host:
        return _ipv6_problem(host)
    if len(host) > 253:
        return "has a host that is too long"
    labels = host.removesuffix(".").split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        return "has a host that is not valid (international names in their ASCII form, please)"
    if _NUMERIC.fullmatch(labels[-1]):
        try:
            plain = str(IPv4Address(host))
        except ValueError:
            plain = None
        if plain != host:
            return "has an address that is not written as four plain decimal numbers"
    return None


def _ipv6_problem(host: str) -> str | None:
    if "%" in host:
        return "has an address with a zone, which means something on one machine only"
    try:
        IPv6Address(host)
    except ValueError:
        return "has an IPv6 address that is not valid"
    return None
