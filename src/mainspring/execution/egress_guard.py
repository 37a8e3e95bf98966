"""The egress guard: which addresses and ports may be called. Pure; asked at every connect.

A name proves nothing, because its owner decides what it resolves to and may change the answer
between a check and the connection. So names are never judged: the address that is about to be
dialled is, and again before a kept connection is used for another request.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

DEFAULT_PORTS = "80,443,1024-65535"
"""The web's own ports and what programs may listen on without privileges: not SSH, mail or DNS."""

_REMEMBERED = 10_000

_FORBIDDEN = {
    ip_network(network): why
    for network, why in (
        ("0.0.0.0/8", "is on this network"),
        ("10.0.0.0/8", "is private"),
        ("100.64.0.0/10", "is shared by a carrier's customers"),
        ("127.0.0.0/8", "is loopback"),
        ("168.63.129.16/32", "belongs to a cloud's host"),
        ("169.254.0.0/16", "is link-local"),
        ("172.16.0.0/12", "is private"),
        ("192.0.0.0/24", "is reserved for protocols"),
        ("192.0.2.0/24", "is for documentation"),
        ("192.88.99.0/24", "is a 6to4 relay"),
        ("192.168.0.0/16", "is private"),
        ("198.18.0.0/15", "is for benchmarks"),
        ("198.51.100.0/24", "is for documentation"),
        ("203.0.113.0/24", "is for documentation"),
        ("224.0.0.0/4", "is multicast"),
        ("240.0.0.0/4", "is reserved"),
        ("::/128", "is unspecified"),
        ("::1/128", "is loopback"),
        ("64:ff9b::/96", "is translated by NAT64"),
        ("64:ff9b:1::/48", "is translated by NAT64"),
        ("2001::/32", "is tunnelled by Teredo"),
        ("2001::/23", "is reserved for protocols"),
        ("2001:db8::/32", "is for documentation"),
        ("2002::/16", "is tunnelled by 6to4"),
        ("3fff::/20", "is for documentation"),
        ("fc00::/7", "is private"),
        ("fe80::/10", "is link-local"),
        ("fec0::/10", "is site-local"),
        ("ff00::/8", "is multicast"),
    )
}
_GLOBAL_V6 = IPv6Network("2000::/3")
_COMPATIBLE_V6 = IPv6Network("::/96")


class CallOrigin(NamedTuple):
    """Host and port of a URL: connections are counted by them."""

    host: str
    port: int


class EgressRules:
    """The rules for one tenant: deny wins over allow, allow over what is forbidden by its kind."""

    def __init__(
        self, allow: Iterable[Network] = (), deny: Iterable[Network] = (), ports: str = ""
    ) -> None:
        self._allow = tuple(allow)
        self._deny = tuple(deny)
        self._ports = parse_ports(ports or DEFAULT_PORTS)
        self._known: dict[tuple[str, int], str | None] = {}

    def with_lists(self, allow: Iterable[str], deny: Iterable[str]) -> "EgressRules":
        """Return the same rules with a tenant's own lists added."""
        made = EgressRules(
            (*self._allow, *map(ip_network, allow)), (*self._deny, *map(ip_network, deny))
        )
        made._ports = self._ports
        return made

    def refusal(self, address: str, port: int) -> str | None:
        """Return why this address may not be called; None when it may."""
        try:
            return self._known[address, port]
        except KeyError:
            pass
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        found = self._known[address, port] = self._judge(address, port)
        return found

    def port_refusal(self, port: int) -> str | None:
        """Return why this port may not be called; None when it may."""
        if any(port in allowed for allowed in self._ports):
            return None
        return f"port {port} is not allowed"

    def _judge(self, text: str, port: int) -> str | None:
        try:
            address = ip_address(text.partition("%")[0])
        except ValueError:
            return "what was to be dialled is not an address"
        # The form on the wire and the address inside it are both looked up in the lists.
        forms = {address, _unwrap(address)}
        if any(_within(form, self._deny) for form in forms):
            return f"{text} is on the deny-list"
        if not any(_within(form, self._allow) for form in forms):
            why = _forbidden(_unwrap(address))
            if why is not None:
                return f"{text} {why}"
        return self.port_refusal(port)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks separated by commas; ValueError names the bad one."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def parse_ports(text: str) -> tuple[range, ...]:
    """Parse a list like "80,443,1024-65535"; ValueError names the bad part."""
    ranges = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        low, dash, high = part.partition("-")
        last = high if dash else low
        if not (low.isdecimal() and last.isdecimal()):
            raise ValueError(f"{part!r} is not a port or a range of ports")
        ranges.append(range(int(low), int(last) + 1))
    return tuple(ranges)


@lru_cache(maxsize=4096)
def origin_of(url: str) -> CallOrigin:
    """Return the host and port of a URL; ValueError says why it has none."""
    parts = urlsplit(url)
    return CallOrigin(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def _unwrap(address: Address) -> Address:
    """Return the IPv4 address inside an IPv6 one; any other as it is."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _COMPATIBLE_V6 and int(address) > 1:
            return IPv4Address(int(address))
    return address


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _forbidden(address: Address) -> str | None:
    reserved = isinstance(address, IPv6Address) and address not in _GLOBAL_V6
    otherwise = "is reserved" if reserved else None
    return next((why for network, why in _FORBIDDEN.items() if address in network), otherwise)
