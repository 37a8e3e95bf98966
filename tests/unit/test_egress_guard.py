"""The egress guard against a corpus of hostile addresses and URLs."""

import pytest

from mainspring.domain.urls import host_problem, url_problem
from mainspring.execution.egress_guard import (
    EgressRules,
    origin_of,
    parse_networks,
    parse_ports,
)

FORBIDDEN = [
    # this network, private, shared, loopback, link-local
    *("0.0.0.0", "0.0.0.1", "0.255.255.255", "10.0.0.1", "10.255.255.255", "100.64.0.1"),
    *("100.100.100.200", "100.127.255.255", "127.0.0.1", "127.0.0.53", "127.1.2.3"),
    *("127.255.255.255", "169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.1"),
    *("172.31.255.255", "192.168.0.1", "192.168.255.255"),
    # protocols, documentation, benchmarks, relays, multicast, reserved, a cloud's host
    *("192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255"),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
    *("255.255.255.255", "168.63.129.16"),
    # IPv6: unspecified, loopback, local, multicast, documentation, outside global unicast
    *("::", "::1", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "fc00::1", "fd00:ec2::254"),
    *("ff02::1", "ff0e::1", "2001:db8::1", "3fff::1", "100::1", "4000::1", "5f00::1"),
    # IPv4 inside IPv6: mapped, compatible, translated, NAT64, 6to4, Teredo
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "::10.0.0.1"),
    *("::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::1"),
    *("2002:7f00:1::", "2002:0a00:1::", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
    *("2001:10::1", "2001:20::1"),
    # nothing that is an address
    *("", "localhost", "0x7f000001", "2130706433", "127.1", "0177.0.0.1"),
]

HOSTILE_URLS = [
    # an address in any form but the plain one
    *("http://2130706433/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://0177.0.0.1/"),
    *("http://017700000001/", "http://127.1/", "http://127.0.1/", "http://0/", "http://1/"),
    *("http://127.0.0.01/", "http://127.0.0.1./", "http://0x7f.1/", "http://0X7F000001/"),
    *("http://3232235521/", "http://169.254.43518/", "http://0251.0376.0251.0376/"),
    *("http://0xA9FEA9FE/", "http://256.256.256.256/", "http://1.2.3.4.5/", "http://1.2.3/"),
    *("http://example.0x7f/", "http://example.1/", "http://127.0.0.1.1/", "http://00/"),
    # names that are none, and the tricks of writing
    *(
        "http://%31%32%37.0.0.1/",
        "http://127%2e0%2e0%2e1/",
        "http://①②⑦.⓪.⓪.①/",
        "http://１２７.0.0.1/",
    ),
    *("http://127。0。0。1/", "http://[::1%25lo]/", "http://[fe80::1%eth0]/", "http://[::1/"),
    *(
        "http://[127.0.0.1]/",
        "http://[]/",
        "http://::1/",
        "http://a..b/",
        "http://.a/",
        "http://a_b..c/",
    ),
    *("http://exämple.com/", f"http://{'a' * 64}.com/", f"http://{'a.' * 130}com/"),
    # users, schemes, ports, control characters
    *("http://u@example.com/", "http://u:p@example.com/", "http://example.com@127.0.0.1/"),
    *("http://127.0.0.1\\@example.com/", "http:\\\\127.0.0.1/", "//127.0.0.1/", "127.0.0.1"),
    *("file:///etc/passwd", "gopher://127.0.0.1/", "ftp://127.0.0.1/", "dict://127.0.0.1:11211/"),
    *("javascript:alert(1)", "http://", "http:///x", "https://", "http://example.com:0/"),
    *("http://example.com:99999/", "http://example.com:x/", "http://example.com:-1/"),
    *("http://example.com/\r\nX: 1", "http://example.com/\n", "http://exa\tmple.com/"),
    *("http://exam\x00ple.com/", "http://example.com/ ", " http://example.com/", "http://a b/"),
    *("http://example.com/\x7f", "http://example.com\r\n.evil.example/"),
]

FINE_URLS = [
    "http://example.com/",
    "https://api.example.com:8443/hook?x=1#part",
    "http://93.184.216.34/",
    "http://[2606:2800:220:1:248:1893:25c8:1946]/",
    "http://xn--exmple-cua.com/",
    "http://a_b.example.com/",
    "http://example.com./",
    "http://localhost:9000/",
    "http://3com.com/",
]


def test_the_corpora_are_large_enough() -> None:
    assert len(set(FORBIDDEN)) >= 60
    assert len(set(HOSTILE_URLS)) >= 60


@pytest.mark.parametrize("address", FORBIDDEN)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert EgressRules().refusal(address, 443)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "::8.8.8.8"]
)
def test_what_is_public_may_be_called(address: str) -> None:
    assert EgressRules().refusal(address, 443) is None


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_hostile_urls_are_refused_at_creation(url: str) -> None:
    assert url_problem(url)


@pytest.mark.parametrize("url", FINE_URLS)
def test_plain_urls_are_taken(url: str) -> None:
    assert url_problem(url) is None


def test_an_allow_list_opens_and_a_deny_list_closes() -> None:
    egress = EgressRules(parse_networks("10.0.0.0/8, ::1"), parse_networks("10.9.0.0/16,8.8.8.8"))
    assert egress.refusal("10.1.2.3", 443) is None
    assert egress.refusal("::ffff:10.1.2.3", 443) is None
    assert egress.refusal("::1", 443) is None
    assert egress.refusal("10.9.2.3", 443)
    assert egress.refusal("::ffff:10.9.2.3", 443)
    assert egress.refusal("8.8.8.8", 443)
    assert egress.refusal("192.168.0.1", 443)


def test_a_tenants_lists_add_to_the_installations() -> None:
    tenant = EgressRules(deny=parse_networks("10.9.0.0/16")).with_lists(["10.0.0.0/8"], ["9.9.9.9"])
    assert tenant.refusal("10.1.0.1", 443) is None
    assert tenant.refusal("10.9.0.1", 443)
    assert tenant.refusal("9.9.9.9", 443)


@pytest.mark.parametrize("port", [22, 25, 53, 110, 445, 0])
def test_privileged_ports_are_refused(port: int) -> None:
    assert EgressRules().refusal("8.8.8.8", port)


def test_ports_can_be_chosen() -> None:
    egress = EgressRules(ports="25,8000-8002")
    assert [p for p in (25, 80, 443, 7999, 8000, 8002, 8003) if not egress.port_refusal(p)] == [
        *(25, 8000, 8002),
    ]


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1-x", "1.5"])
def test_ports_that_make_no_sense_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="not a port"):
        parse_ports(text)


def test_an_origin_knows_the_default_ports() -> None:
    assert origin_of("https://Example.com/x") == ("example.com", 443)
    assert origin_of("http://example.com") == ("example.com", 80)
    assert origin_of("http://[::1]:81/") == ("::1", 81)


def test_a_host_with_a_zone_is_refused() -> None:
    assert host_problem("fe80::1%lo")
