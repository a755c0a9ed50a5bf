"""Names stay within the kernel's limits, and a net is only taken when nobody else has it."""

from __future__ import annotations

import pytest
from specswap_sandbox.errors import SandboxError
from specswap_sandbox.names import (
    MAX_HOSTS,
    Names,
    check_host_name,
    check_net,
    check_tag,
    choose_net,
    collisions,
    next_index,
)

NAMES = Names("ssb", "10.203.0")
GUARD = {"type": "unreachable", "dst": "10.203.0.0/24", "metric": 4096, "dev": None}


def link(name: str, address: str, prefix: int) -> dict[str, object]:
    return {"ifname": name, "addr_info": [{"local": address, "prefixlen": prefix}]}


def test_link_names_fit_the_kernel_for_the_longest_tag_and_the_last_host() -> None:
    names = Names(check_tag("abcdefg"), "10.203.0")
    assert max(len(names.bridge), len(names.link(MAX_HOSTS))) <= 15


def test_last_host_has_an_address_of_the_net() -> None:
    assert NAMES.address(1) == "10.203.0.11"
    assert NAMES.address(MAX_HOSTS) == "10.203.0.210"


@pytest.mark.parametrize("tag", ["", "br", "docker", "Ssb", "1ab", "a-b", "abcdefgh", "a/b"])
def test_bad_tags_are_refused(tag: str) -> None:
    with pytest.raises(SandboxError, match="tag"):
        check_tag(tag)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a b", "../a", "x" * 64])
def test_bad_host_names_are_refused(name: str) -> None:
    with pytest.raises(SandboxError, match="host name"):
        check_host_name(name)


def test_the_longest_host_name_is_accepted() -> None:
    assert check_host_name("x" * 63) == "x" * 63


@pytest.mark.parametrize("net", ["10.203", "10.203.0.0", "10.203.300", "8.8.8", "127.0.0", "169.254.1", "auto "])
def test_bad_nets_are_refused(net: str) -> None:
    with pytest.raises(SandboxError, match="net"):
        check_net(net)


def test_other_tags_with_the_same_start_are_not_ours() -> None:
    names = Names("ss", "10.203.0")
    assert not any(names.owns_link(other) for other in ("ssb-br", "ssb-v1", "ss-vx", "ss-v1a", "xss-br"))
    assert names.owns_link("ss-br") and names.owns_link("ss-v17")
    assert names.owns_netns("ss-ns3") and not names.owns_netns("ssb-ns3")


def test_free_indices_are_used_again() -> None:
    assert next_index([]) == 1
    assert next_index([1, 3]) == 2
    with pytest.raises(SandboxError, match="at most"):
        next_index(range(1, MAX_HOSTS + 1))


def test_a_foreign_address_or_route_that_overlaps_is_named() -> None:
    found = collisions(NAMES, [{"dst": "10.0.0.0/8", "dev": "wg0"}], [link("eth1", "10.203.0.77", 16)])
    assert found == ["address 10.203.0.77/16 on eth1", "route 10.0.0.0/8 on wg0"]


def test_a_single_address_inside_the_net_collides() -> None:
    assert collisions(NAMES, [{"dst": "10.203.0.9", "dev": "tun0"}], []) == ["route 10.203.0.9 on tun0"]
    assert collisions(NAMES, [{"type": "blackhole", "dst": "10.203.0.0/16"}], []) == ["route 10.203.0.0/16 (blackhole)"]


def test_own_bridge_own_guard_and_default_routes_do_not_collide() -> None:
    routes = [
        GUARD,
        {"dst": "default", "dev": "eth0"},
        {"dst": "0.0.0.0/1", "dev": "tun0"},
        {"dst": "10.203.0.0/24", "dev": "ssb-br"},
        {"dst": "10.203.0.1", "dev": "ssb-br", "table": "local", "type": "local"},
        {"dst": "192.168.0.0/24", "dev": "eth0"},
    ]
    assert collisions(NAMES, routes, [link("ssb-br", "10.203.0.1", 24), link("eth0", "192.168.0.5", 24)]) == []


def test_the_same_net_on_another_sandboxs_bridge_collides() -> None:
    found = collisions(NAMES, [{"dst": "10.203.0.0/24", "dev": "oth-br"}], [link("oth-br", "10.203.0.1", 24)])
    assert found == ["address 10.203.0.1/24 on oth-br", "route 10.203.0.0/24 on oth-br"]


def test_auto_skips_taken_nets_and_nets_that_are_guarded_already() -> None:
    assert choose_net("ssb", [], []) == "10.203.0"
    assert choose_net("ssb", [GUARD, {"dst": "10.203.1.0/24", "dev": "x"}], [link("y", "10.203.2.1", 24)]) == "10.203.3"


def test_auto_says_what_to_do_when_everything_is_taken() -> None:
    with pytest.raises(SandboxError, match="--net"):
        choose_net("ssb", [{"dst": "10.0.0.0/8", "dev": "vpn"}], [])
