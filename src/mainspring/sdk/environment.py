"""Where the API is and with which key to call it, for programs that do not say it themselves.

The same variables as the command line reads, without its dependencies: MAINSPRING_URL,
MAINSPRING_API_KEY, MAINSPRING_API_CA and MAINSPRING_PROXY, each also as a file's name in …_FILE.
HTTP_PROXY and its like are not read: they are set for other programs, and a key goes nowhere that
nobody named for it.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from mainspring.errors import ConfigError
from mainspring.sdk.proxy import Proxy

DEFAULT_URL = "http://127.0.0.1:7070"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the API is, and the key to it. `ca` is a file of authorities for https; `proxy` is what
    it is reached through, and may hold a password."""

    url: str
    api_key: str = field(repr=False)
    ca: str | None = None
    proxy: str | None = field(default=None, repr=False)


def address(
    url: str | None = None,
    api_key: str | None = None,
    ca: str | None = None,
    proxy: str | None = None,
) -> Address:
    """What is given, or else what the environment says."""
    problems: list[str] = []
    where = (url or _read("MAINSPRING_URL", problems) or DEFAULT_URL).rstrip("/")
    key = api_key or _read("MAINSPRING_API_KEY", problems)
    authorities = ca or _read("MAINSPRING_API_CA", problems)
    through = proxy or _read("MAINSPRING_PROXY", problems)
    if not where.startswith(("http://", "https://")):
        problems.append(f"url: {where!r} does not begin with http:// or https://")
    elif not _names_host(where):
        problems.append(f"url: {where!r} names no host, or no port that there can be")
    if key is None:
        problems.append("api_key is not set: set MAINSPRING_API_KEY, or give api_key")
    elif not (key.isascii() and key.isprintable()) or " " in key:
        problems.append("api_key contains characters that no key has")
    problems.extend(_wrong_with_proxy(through))
    if problems or key is None:
        raise ConfigError(problems)
    return Address(where, key, authorities, through)


def child_environment(address: Address) -> dict[str, str]:
    """The environment of a process that shall call the same API."""
    named = {"MAINSPRING_URL": address.url, "MAINSPRING_API_KEY": address.api_key}
    if address.ca is not None:
        named["MAINSPRING_API_CA"] = address.ca
    if address.proxy is not None:
        named["MAINSPRING_PROXY"] = address.proxy
    return {**os.environ, **named}


def _names_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _wrong_with_proxy(url: str | None) -> list[str]:
    try:
        if url is not None:
            Proxy.of(url)
    except ValueError as problem:
        return [f"proxy: {problem}"]
    return []


def _read(variable: str, problems: list[str]) -> str | None:
    if variable in os.environ:
        return os.environ[variable] or None
    file = os.environ.get(f"{variable}_FILE")
    if file is None:
        return None
    try:
        return Path(file).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{variable}_FILE cannot be read: {error}")
        return None
