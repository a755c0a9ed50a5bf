"""Bridge, network namespaces and veth pairs of a sandbox, and the route that keeps its packets on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import SandboxError
from .names import GUARD_METRIC, Names, choose_net, collisions, is_guard
from .shell import ip_json, locked_folder, run


def routes() -> list[dict[str, object]]:
    """All IPv4 routes of the machine, in every table."""
    return ip_json("-4", "route", "show", "table", "all")


def addresses() -> list[dict[str, object]]:
    """All IPv4 addresses of the machine, by link."""
    return ip_json("-4", "address", "show")


def pick(tag: str, net: str) -> Names:
    """Names with a free net: `net` itself or, for `auto`, the first free one. SandboxError names the collision."""
    if net == "auto":
        return Names(tag, choose_net(tag, routes(), addresses()))
    names = Names(tag, net)
    if found := collisions(names, routes(), addresses()):
        raise SandboxError(
            f"network {names.subnet} is in use on this machine: {'; '.join(found)}; give another --net, or auto"
        )
    return names


@contextmanager
def allocation() -> Iterator[None]:
    """Held from choosing a net until its bridge stands, so that two sandboxes cannot choose the same one."""
    with locked_folder(Path("/run"), create=False):
        yield


def guard_up(names: Names) -> None:
    """The unreachable route: without it a packet for a host that is gone would leave by the default route.

    It comes first and goes last.
    """
    run(["ip", "route", "replace", "unreachable", names.subnet, "metric", str(GUARD_METRIC)])


def bridge_up(names: Names) -> None:
    """The guarding route and the bridge."""
    guard_up(names)
    if names.bridge not in links():
        run(["ip", "link", "add", names.bridge, "type", "bridge"])
    run(["ip", "address", "replace", f"{names.gateway}/24", "dev", names.bridge])
    run(["ip", "link", "set", names.bridge, "up"])


def links() -> dict[str, dict[str, object]]:
    """Links of the machine by name."""
    return {str(link["ifname"]): link for link in ip_json("link", "show")}


def namespaces() -> list[str]:
    """Names of the network namespaces that have one."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def host_up(names: Names, index: int) -> None:
    """The host's namespace with one link `host0` on the bridge. There is no default route: a host has no way out."""
    netns, link = names.netns(index), names.link(index)
    if netns not in namespaces() or link not in links():
        host_down(names, index)
        run(["ip", "netns", "add", netns])
        # One step: a link that is down can then only mean a network that was cut, which stays cut.
        peer = ["type", "veth", "peer", "name", "host0", "netns", netns]
        run(["ip", "link", "add", link, "up", "master", names.bridge, *peer])
    # Again each time: an earlier call may have been killed between any two steps.
    run(["ip", "-n", netns, "link", "set", "lo", "up"])
    run(["ip", "-n", netns, "address", "replace", f"{names.address(index)}/24", "dev", "host0"])
    run(["ip", "-n", netns, "link", "set", "host0", "up"])


def host_down(names: Names, index: int) -> None:
    """Remove what `host_up` made, as far as it is there."""
    if names.link(index) in links():
        run(["ip", "link", "delete", names.link(index)], check=False)
    if names.netns(index) in namespaces():
        run(["ip", "netns", "delete", names.netns(index)])


def set_link(names: Names, index: int, *, up: bool) -> None:
    """Cut or restore the host's network at the machine's end of its link, where the host cannot see to it."""
    run(["ip", "link", "set", names.link(index), "up" if up else "down"])


def link_is_up(names: Names, index: int) -> bool:
    """Whether the machine's end of the host's link is set up."""
    link = links().get(names.link(index), {})
    flags = link.get("flags", [])
    return isinstance(flags, list) and "UP" in flags


def remove_all(names: Names) -> None:
    """Remove every link, namespace and route of the sandbox; the guarding route last. `names.net` may be empty."""
    for netns in namespaces():
        if names.owns_netns(netns):
            run(["ip", "netns", "delete", netns])
    for link in sorted(links(), key=lambda name: name == names.bridge):
        # A namespace that goes takes the link along a moment later: a failed removal is judged by what is left.
        if names.owns_link(link):
            run(["ip", "link", "delete", link], check=False)
    if left := [link for link in links() if names.owns_link(link)]:
        raise SandboxError(f"links {', '.join(left)} could not be removed; `ip link delete NAME` says why")
    if names.net and any(is_guard(route, names.subnet) for route in routes()):
        run(["ip", "route", "delete", "unreachable", names.subnet, "metric", str(GUARD_METRIC)])
