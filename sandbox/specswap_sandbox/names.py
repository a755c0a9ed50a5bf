"""Names and addresses: every kernel object of a sandbox gets its name here, so that `down` finds it again by name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import SandboxError

#: Prefixes that other programs use for their links; a tag equal to one could meet a foreign `<tag>-br`.
RESERVED_TAGS = frozenset(
    {"br", "docker", "eth", "ens", "enp", "lo", "tap", "tun", "veth", "virbr", "vnet", "wlan", "wg"}
)
FIRST_HOST_OCTET = 10
MAX_HOSTS = 200
GUARD_METRIC = 4096
AUTO_PREFIX = "10.203"


def check_tag(tag: str) -> str:
    """Return `tag` when it can prefix link names (at most 15 characters in Linux), else raise SandboxError."""
    if not re.fullmatch(r"[a-z][a-z0-9]{0,6}", tag) or tag in RESERVED_TAGS:
        raise SandboxError(
            f"tag {tag!r}: use 1 to 7 lower-case letters or digits, starting with a letter, and no usual link prefix"
        )
    return tag


def check_host_name(name: str) -> str:
    """Return `name` when it is one valid DNS label, else raise SandboxError."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise SandboxError(
            f"host name {name!r}: use lower-case letters, digits and inner hyphens, at most 63 characters"
        )
    return name


def check_net(net: str) -> str:
    """Return `net`, the first three octets of a private /24 such as `10.203.0`, else raise SandboxError."""
    try:
        network = ipaddress.IPv4Network(f"{net}.0/24")
    except ValueError as error:
        raise SandboxError(f"net {net!r}: give the first three octets of a /24, such as 10.203.0, or auto") from error
    if not network.is_private or network.is_loopback or network.is_link_local:
        raise SandboxError(
            f"net {net!r}: not a private network; use one inside 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16"
        )
    return net


@dataclass(frozen=True)
class Names:
    """Names of the kernel objects of one sandbox. Indices count from 1; link names stay within 15 characters."""

    tag: str
    net: str

    @property
    def bridge(self) -> str:
        return f"{self.tag}-br"

    def link(self, index: int) -> str:
        """The machine's end of the host's veth pair."""
        return f"{self.tag}-v{index}"

    def netns(self, index: int) -> str:
        return f"{self.tag}-ns{index}"

    def machine(self, index: int) -> str:
        """Name towards systemd-nspawn or the container engine; independent of the host name, which may be long."""
        return f"specswap-{self.tag}-{index}"

    @property
    def cgroup(self) -> str:
        return f"specswap-{self.tag}"

    @property
    def subnet(self) -> str:
        return f"{self.net}.0/24"

    @property
    def gateway(self) -> str:
        return f"{self.net}.1"

    def address(self, index: int) -> str:
        return f"{self.net}.{FIRST_HOST_OCTET + index}"

    def owns_link(self, name: str) -> bool:
        return name == self.bridge or re.fullmatch(rf"{self.tag}-v\d+", name) is not None

    def owns_netns(self, name: str) -> bool:
        return re.fullmatch(rf"{self.tag}-ns\d+", name) is not None


def next_index(used: Iterable[int]) -> int:
    """The lowest free host index; raises SandboxError when the /24 is used up."""
    taken = set(used)
    for index in range(1, MAX_HOSTS + 1):
        if index not in taken:
            return index
    raise SandboxError(f"a sandbox holds at most {MAX_HOSTS} hosts; use a second one with another tag")


def is_guard(route: Mapping[str, Any], subnet: str) -> bool:
    """Whether a route of `ip -j route` is a sandbox's unreachable route for `subnet`."""
    return route.get("type") == "unreachable" and route.get("dst") == subnet and route.get("metric") == GUARD_METRIC


def collisions(names: Names, routes: Sequence[Mapping[str, Any]], links: Sequence[Mapping[str, Any]]) -> list[str]:
    """What on this machine already uses the /24 of `names`, in words; empty when it is free.

    `routes` is `ip -j -4 route show table all`, `links` is `ip -j -4 address`. Default routes do not count, nor does
    what belongs to this sandbox: its bridge and the unreachable route that guards the net.
    """
    wanted = ipaddress.IPv4Network(names.subnet)
    found: list[str] = []
    for link in links:
        if link.get("ifname") == names.bridge:
            continue
        for info in link.get("addr_info", []):
            if "local" not in info:
                continue
            network = ipaddress.IPv4Network(f"{info['local']}/{info.get('prefixlen', 32)}", strict=False)
            if wanted.overlaps(network):
                found.append(f"address {info['local']}/{info.get('prefixlen', 32)} on {link.get('ifname')}")
    for route in routes:
        target = str(route.get("dst", "default"))
        # The kernel's local table repeats every address; those are judged above.
        if target == "default" or route.get("dev") == names.bridge or route.get("table") == "local":
            continue
        if is_guard(route, names.subnet):
            continue
        try:
            network = ipaddress.IPv4Network(target, strict=False)
        except ValueError:
            continue
        # A machine behind a VPN may route 0.0.0.0/1 and 128.0.0.0/1: that is a default route in two halves.
        if network.prefixlen > 1 and wanted.overlaps(network):
            where = f" on {route['dev']}" if route.get("dev") else f" ({route.get('type', 'unicast')})"
            found.append(f"route {target}{where}")
    return found


def choose_net(tag: str, routes: Sequence[Mapping[str, Any]], links: Sequence[Mapping[str, Any]]) -> str:
    """The first free 10.203.N; raises SandboxError when all 256 are taken.

    A guard route without its bridge counts as taken here, although an explicit net may adopt it: it may belong to a
    sandbox that is starting just now.
    """
    for octet in range(256):
        names = Names(tag, f"{AUTO_PREFIX}.{octet}")
        if any(is_guard(route, names.subnet) for route in routes):
            continue
        if not collisions(names, routes, links):
            return names.net
    raise SandboxError(f"no free network in {AUTO_PREFIX}.0.0/16: give one with --net, such as 10.77.0")
