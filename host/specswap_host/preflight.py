"""Everything about the wanted service that can be checked before the serving one is stopped."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import toolkit
from .atomic import read_json, sha256_file
from .context import Context
from .engines import EngineError, Finding
from .plan import Model, Service
from .procfs import unit_of
from .release import WRITABLE, ReleaseError, verify_release
from .systemd import SystemdError

MIN_FREE_BYTES = 16 << 20
PROVISION = "run site.yml for this host"

# What keeps a unit from starting or drops a setting. Warnings (unknown hardening keys on an older systemd, special
# users, modes of files) come in many wordings and are no reason not to serve.
_MATTERS = re.compile(
    r"not executable|has no ExecStart|more than one ExecStart|bad unit file setting|Refusing|fatal error"
    r"|Missing '='|Assignment outside of section|Failed to parse (?!system call)|Invalid .*, ignoring"
)


def preflight(ctx: Context, service: Service, own_units: Iterable[str]) -> list[Finding]:
    """All reasons not to start `service`, an empty list when there is none; touches nothing.

    `own_units` are the slot's units: they may hold the port, as they will be stopped.
    """
    findings = [*file_findings(service), *_user(service)]
    findings += _masked(ctx, service)
    findings += _unit_text(ctx, service)
    findings += _port(ctx, service, set(own_units) | {service.unit})
    findings += _disk(ctx, service)
    try:
        findings += ctx.engine(service.engine).static_checks(service)
    except EngineError as error:
        findings.append(Finding("engine_unknown", str(error), f"{PROVISION} with this version of specswap"))
    return findings


def file_findings(service: Service) -> list[Finding]:
    """What is wrong with the files that the next start of `service` needs: release, programs, models."""
    findings = [*_release(service), *_programs(service)]
    for role, model in service.models.items():
        findings += _model(role, model)
    return findings


def _stamp(path: Path) -> tuple[dict[str, Any], str]:
    try:
        data = read_json(path)
    except FileNotFoundError:
        return {}, f"{path} is missing"
    except (OSError, ValueError) as error:
        return {}, f"{path}: {error}"
    return (data, "") if isinstance(data, dict) else ({}, f"{path}: not an object")


def _release(service: Service) -> list[Finding]:
    folder = Path(service.release_path)
    if not folder.is_dir():
        return [Finding("release_missing", f"release {service.release}: {folder} does not exist", PROVISION)]
    stamp, problem = _stamp(folder / "specswap-release.json")
    if problem:
        message = f"release {service.release} has no stamp, its build did not finish: {problem}"
        return [Finding("release_unstamped", message, PROVISION)]
    if stamp.get("release") != service.release:
        message = f"{folder} is stamped as {stamp.get('release')!r}, the plan wants {service.release!r}"
        return [Finding("release_other", message, PROVISION)]
    # By names, sizes, times and modes, in milliseconds; contents are read where a time has changed.
    try:
        problems = verify_release(folder)
    except ReleaseError as error:
        problems = [str(error)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        message = f"release {service.release} is not as it was built: {problems[0]}{more}"
        fix = f"once nothing runs from it, remove {folder} (chmod -R u+w, rm -r) and {PROVISION}"
        return [Finding("release_changed", message, fix)]
    return []


def _launcher(service: Service) -> list[Finding]:
    """The launcher's folder is named after its content, and small enough to be read whole."""
    if service.launcher is None:
        return []
    path, what = Path(service.launcher.path), f"launcher {service.launcher.name}"
    if not path.is_file():
        return [Finding("launcher_missing", f"{what}: {path} does not exist", PROVISION)]
    try:
        same = path.parent.name.endswith(f"-{toolkit.tree_hash(path.parent)}")
    except OSError as error:
        return [Finding("launcher_unreadable", f"{what}: {error}", PROVISION)]
    if same:
        return []
    message = f"{what}: what lies in {path.parent} is not what its name says: it was changed after it was installed"
    return [Finding("launcher_changed", message, f"{PROVISION}: it installs the launcher anew")]


def _programs(service: Service) -> list[Finding]:
    findings = _launcher(service)
    program = service.argv[0]
    if not os.access(program, os.X_OK):
        findings.append(Finding("program_missing", f"{program} does not exist or is not executable", PROVISION))
    return findings


def _user(service: Service) -> list[Finding]:
    try:
        pwd.getpwnam(service.user)
    except KeyError:
        return [Finding("user_missing", f"user {service.user} does not exist", PROVISION)]
    return []


def _model(role: str, model: Model) -> list[Finding]:
    path = Path(model.path)
    what = f"{role} model {model.name}"
    try:
        info = path.stat()
    except OSError as error:
        return [Finding("model_missing", f"{what}: {path}: {error.strerror}", PROVISION)]
    folder = path if path.is_dir() else path.parent
    if path.is_file() and info.st_size != model.size:
        message = f"{what}: {path} has {info.st_size} bytes, the plan says {model.size}"
        return [Finding("model_size", message, f"remove {folder} and {PROVISION}")]
    stamp, problem = _stamp(folder / "specswap-model.json")
    if problem:
        return [Finding("model_unstamped", f"{what} was never verified: {problem}", PROVISION)]
    if stamp.get("sha256") != model.sha256:
        message = f"{what}: {folder} was verified as sha256 {stamp.get('sha256')}, the plan says {model.sha256}"
        return [Finding("model_other", message, PROVISION)]
    if not path.is_file():
        return []
    # Its content is read only when its time says that it may be another one; site.yml then notes the new time.
    if info.st_mtime_ns != stamp.get("mtime_ns") and sha256_file(path) != model.sha256:
        message = f"{what}: the content of {path} was changed after it was verified"
        return [Finding("model_changed", message, f"remove {folder} and {PROVISION}")]
    if info.st_mode & WRITABLE:
        message = f"{what}: {path} may be written by others than its owner (mode {info.st_mode & 0o7777:04o})"
        return [Finding("model_writable", message, f"chmod 0444 {path}")]
    return []


def _masked(ctx: Context, service: Service) -> list[Finding]:
    """Masking is how an operator says that a unit must not run: it is not undone by the way."""
    (state,) = ctx.systemd.show(service.unit)
    if not state.unit_file_state.startswith("masked"):
        return []
    message = f"{service.unit} is masked: somebody decided that it must not start"
    return [Finding("unit_masked", message, f"systemctl unmask {service.unit}, if it may")]


def _unit_text(ctx: Context, service: Service) -> list[Finding]:
    if f"# specswap plan_hash={service.plan_hash}" not in service.unit_text:
        message = f"the text of {service.unit} does not carry plan_hash={service.plan_hash}"
        return [Finding("unit_hash", message, "render the unit and the plan from the same inventory")]
    with tempfile.TemporaryDirectory(prefix="specswap-verify-") as folder:
        path = Path(folder) / service.unit
        path.write_text(service.unit_text)
        try:
            output = ctx.systemd.verify(path)
        except SystemdError as error:
            return [Finding("unit_unverified", f"systemd-analyze verify: {error}", "install systemd's tools")]
    errors = [
        line.replace(f"{folder}/", "") for line in output.splitlines() if service.unit in line and _MATTERS.search(line)
    ]
    if errors:
        return [Finding("unit_invalid", "; ".join(errors[:5]), "correct the variant's data or templates/service.j2")]
    return []


def _port(ctx: Context, service: Service, own_units: set[str]) -> list[Finding]:
    return [
        Finding(
            "port_foreign",
            f"port {service.slot.port} belongs to somebody else: {listener.describe()}",
            f"stop it (kill {listener.pid}) or give slot {service.slot.name} another port",
        )
        for listener in ctx.procfs.listeners(service.slot.port, service.slot.bind)
        if unit_of(listener.cgroup) not in own_units
    ]


def _disk(ctx: Context, service: Service) -> list[Finding]:
    findings = []
    for folder in (ctx.paths.slot_dir(service.slot.name), ctx.paths.units_dir):
        try:
            info = os.statvfs(folder)
        except OSError as error:
            findings.append(Finding("folder_missing", f"{folder}: {error.strerror}", PROVISION))
            continue
        free = info.f_bavail * info.f_frsize
        if free < MIN_FREE_BYTES:
            message = f"{folder}: {free >> 20} MiB free, state and journal need {MIN_FREE_BYTES >> 20} MiB"
            findings.append(Finding("disk_full", message, "free space (df -h)"))
        # File systems without a fixed number of inodes report none at all.
        if info.f_files and info.f_favail < 16:
            findings.append(Finding("inodes_used_up", f"{folder}: no inodes left", "remove files (df -i)"))
    return findings
