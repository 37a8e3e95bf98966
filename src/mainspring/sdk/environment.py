"""Address of the API and its credentials, from arguments or from the environment.

The variables are those of the command line, each also as the name of a file in …_FILE. HTTP_PROXY
and its like are not read: they are set for other programs, and would see the key.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack
from urllib.parse import urlsplit

from mainspring.errors import ConfigError
from mainspring.sdk.http1 import Proxy

DEFAULT_URL = "http://127.0.0.1:7070"
_VARIABLES = {
    "url": "MAINSPRING_URL",
    "api_key": "MAINSPRING_API_KEY",
    "ca": "MAINSPRING_API_CA",
    "proxy": "MAINSPRING_PROXY",
    "client_cert": "MAINSPRING_CLIENT_CERT",
    "client_key": "MAINSPRING_CLIENT_KEY",
}


class ConnectionFields(TypedDict, total=False):
    """How the API is reached; what is left out is read from the environment."""

    ca: str | None
    proxy: str | None
    client_cert: str | None
    client_key: str | None


class AddressFields(ConnectionFields, total=False):
    """All fields of an address."""

    url: str | None
    api_key: str | None


@dataclass(frozen=True, slots=True)
class Address:
    """Address of the API, its key, a proxy (the URL may hold a password), and PEM files for https:
    authorities to trust, a client certificate, and its key if that is in another file."""

    url: str
    api_key: str = field(repr=False)
    ca: str | None = None
    proxy: str | None = field(default=None, repr=False)
    client_cert: str | None = None
    client_key: str | None = None


def address(**given: Unpack[AddressFields]) -> Address:
    """Return the given fields, completed from the environment."""
    check_names(given)
    problems: list[str] = []
    named: Mapping[str, object] = given
    found = {
        name: named.get(name) or _read(variable, problems) for name, variable in _VARIABLES.items()
    }
    if given.get("client_cert"):  # the key that the environment names belongs to another one
        found["client_key"] = given.get("client_key")
    found["url"] = str(found["url"] or DEFAULT_URL).rstrip("/")
    where = Address(**found)  # type: ignore[arg-type]
    problems += _problems(where)
    if problems:
        raise ConfigError(problems)
    return where


def check_names(given: AddressFields) -> None:
    """Raise TypeError for a field that no address has, as a signature of all of them would."""
    unknown = given.keys() - _VARIABLES.keys()
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {min(unknown)!r}")


def child_environment(address: Address) -> dict[str, str]:
    """Return the environment of a process that shall call the same API."""
    ours = set(_VARIABLES.values())
    others = {n: value for n, value in os.environ.items() if n.removesuffix("_FILE") not in ours}
    fields = {variable: getattr(address, name) for name, variable in _VARIABLES.items()}
    return {**others, **{name: value for name, value in fields.items() if value is not None}}


def _problems(where: Address) -> list[str]:
    found: list[str] = []
    url, key = where.url, where.api_key
    if not url.startswith(("http://", "https://")):
        found.append(f"url: {url!r} does not begin with http:// or https://")
    elif not _names_host(url):
        found.append(f"url: {url!r} names no host, or no port that there can be")
    if not key:
        found.append("api_key is not set: set MAINSPRING_API_KEY, or give api_key")
    elif not (key.isascii() and key.isprintable()) or " " in key:
        found.append("api_key contains characters that no key has")
    try:
        if where.proxy is not None:
            Proxy.of(where.proxy)
    except ValueError as problem:
        found.append(f"proxy: {problem}")
    if where.client_key is not None and where.client_cert is None:
        found.append("client_key means nothing without client_cert")
    return found


def _names_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


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
