"""What `./specswap test` runs: lint, units on every interpreter, real hosts, faults, checks of a provisioned host.

Every stage runs even when an earlier one failed; the exit code says whether all held. Nothing runs in parallel: the
sandbox hosts share the machine with the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specswap import checks, faults
from specswap.errors import ConsoleError
from specswap.interpreters import (
    CONTROLLER_VERSIONS,
    TARGET_ONLY_VERSIONS,
    Interpreter,
    find_interpreters,
    this_interpreter,
)
from specswap.paths import Paths, command_environment
from specswap.progress import seconds
from specswap.stages import Stage, StageResult, run_stage, slowest

#: Parts of a test run, in the order in which `all` runs them.
PARTS = ("lint", "unit", "integration", "faults", "testinfra")
#: Seconds after which a single integration test is taken for hung.
INTEGRATION_TIMEOUT_S = 600


@dataclass(frozen=True)
class Request:
    """What to test.

    Attributes:
        parts: members of `PARTS`, in order.
        keyword: pytest's `-k`, for the parts that pytest runs.
        pythons: controller versions to use, such as `3.12`; empty means every one found.
        hosts: testinfra host specification of an own host; empty means a sandbox host made for the test.
    """

    parts: Sequence[str]
    keyword: str = ""
    pythons: Sequence[str] = ()
    hosts: str = ""


def run_tests(paths: Paths, request: Request, say: Callable[[str], None] = print) -> list[StageResult]:
    """Runs the wanted stages one after the other and prints a summary: slowest tests, then one line per stage.

    Raises:
        ConsoleError: a wanted interpreter is not on this machine.
        KeyboardInterrupt: Ctrl-C; the summary so far is printed first.
    """
    results: list[StageResult] = []
    try:
        for make in stage_makers(paths, request, say):
            for stage in make():
                results.append(run_stage(stage, say))
    finally:
        summarise(results, say)
    return results


def stage_makers(paths: Paths, request: Request, say: Callable[[str], None] = print) -> list[Callable[[], list[Stage]]]:
    """Functions that make the stages of each part. They are called late: a stage may need what an earlier one made."""
    interpreters = controllers(request.pythons)
    makers: list[Callable[[], list[Stage]]] = []
    if {"lint", "unit"} & set(request.parts):
        makers.append(lambda: environment_stages(paths, interpreters))
    if "lint" in request.parts:
        makers.append(lambda: checks.style_stages(paths, Path(sys.prefix)))
        for interpreter in interpreters:
            makers.append(lambda i=interpreter: checks.ansible_stages(paths, prefix_of(paths, i), i.version))  # type: ignore[misc]
    if "unit" in request.parts:
        makers.append(lambda: unit_stages(paths, interpreters, request.keyword))
    provisions = "integration" in request.parts or ("testinfra" in request.parts and not request.hosts)
    if provisions or "faults" in request.parts:
        makers.append(lambda: sandbox_stages(paths, say, supplied=provisions))
    if "integration" in request.parts:
        makers.append(lambda: integration_stages(paths, request.keyword))
    if "faults" in request.parts:
        makers.append(lambda: fault_stages(paths, tuple(request.parts) == ("faults",), request.keyword))
    if "testinfra" in request.parts:
        makers.append(lambda: testinfra_stages(paths, request.hosts, request.keyword))
    return makers


def controllers(wanted: Sequence[str]) -> list[Interpreter]:
    """The interpreters to test on: the console's own first, then every other one found.

    Raises:
        ConsoleError: a version in `wanted` is not found.
    """
    own = this_interpreter()
    versions = list(wanted) or sorted({own.version, *CONTROLLER_VERSIONS})
    found = find_interpreters(version for version in versions if version != own.version)
    found[own.version] = own
    missing = [version for version in wanted if version not in found]
    if missing:
        raise ConsoleError(
            f"Python {', '.join(missing)} is not on this machine",
            f"Found: {', '.join(sorted(found))}. Install it, or leave --python out to test on what there is.",
        )
    chosen = [own] if own.version in versions else []
    return chosen + [found[version] for version in versions if version in found and version != own.version]


def prefix_of(paths: Paths, interpreter: Interpreter) -> Path:
    """The locked environment of an interpreter; the console's own is used as it stands."""
    if interpreter == this_interpreter():
        return Path(sys.prefix)
    return paths.work / f"venv-{interpreter.version}"


def environment_stages(paths: Paths, interpreters: Sequence[Interpreter]) -> list[Stage]:
    """Makes the locked environment of every other interpreter from the same `uv.lock`."""
    stages = []
    for interpreter in interpreters:
        prefix = prefix_of(paths, interpreter)
        if prefix == Path(sys.prefix):
            continue
        env = command_environment(paths)
        env["UV_PROJECT_ENVIRONMENT"] = str(prefix)
        env["UV_PYTHON_DOWNLOADS"] = "never"
        argv = [paths.tool("uv"), "sync", "--locked", "--python", str(interpreter.path)]
        stages.append(Stage(f"environment {interpreter.version}", argv, cwd=paths.root, env=env))
    return stages


def unit_stages(paths: Paths, interpreters: Sequence[Interpreter], keyword: str) -> list[Stage]:
    """Unit tests on every controller interpreter, and the target's code on those that only targets have."""
    stages = []
    for interpreter in interpreters:
        prefix = prefix_of(paths, interpreter)
        stages.append(_pytest(paths, f"unit {interpreter.version}", prefix, ["tests/unit"], keyword))
    for old in find_interpreters(TARGET_ONLY_VERSIONS).values():
        stages.append(checks.target_stage(paths, old))
    return stages


def sandbox_stages(paths: Paths, say: Callable[[str], None], supplied: bool) -> list[Stage]:
    """What tests on sandbox hosts need: system packages and, with `supplied`, what hosts cannot fetch themselves."""
    from specswap_sandbox import install_requirements

    from specswap import supplies

    def indented(line: str) -> None:
        say(f"   {line}")

    def packages() -> tuple[bool, str]:
        installed = install_requirements(indented)
        return True, f"installed {', '.join(installed)}" if installed else "all there"

    def wheels() -> tuple[bool, str]:
        supplies.fetch_example(paths, indented)
        return True, ""

    stages = [Stage("sandbox packages", work=packages)]
    return [*stages, Stage("wheels and models", work=wheels)] if supplied else stages


def integration_stages(paths: Paths, keyword: str) -> list[Stage]:
    """Plays against real sandbox hosts."""
    timeout = ["-o", f"timeout={INTEGRATION_TIMEOUT_S}"]
    return [_pytest(paths, "integration", Path(sys.prefix), ["tests/integration", *timeout], keyword)]


def fault_stages(paths: Paths, whole: bool, keyword: str) -> list[Stage]:
    """Faults on a real host: all of them with `whole`, else the fast ones; only a whole run makes the table anew."""
    complete = whole and not keyword
    rows = paths.results / "faults.json" if complete else paths.work / "reports" / "faults.json"
    choice = [] if whole or keyword else ["-m", "fast"]
    stage = _pytest(paths, "faults", Path(sys.prefix), ["tests/faults", *choice], keyword)
    stage = replace(stage, env={**(stage.env or {}), faults.ROWS_VARIABLE: str(rows)})

    def table() -> tuple[bool, str]:
        return True, faults.publish(rows, paths.root / "docs" / "faults.md")

    return [stage, Stage("table of faults", work=table)] if complete and not stage.skip else [stage]


def testinfra_stages(paths: Paths, hosts: str, keyword: str) -> list[Stage]:
    """The checks of a provisioned host: of an own one when `hosts` says so, else of a sandbox host made for them."""
    if hosts:
        return [_testinfra(paths, hosts, keyword)]
    from specswap.provisioned import provisioned_sandbox

    def work() -> tuple[bool, str]:
        with provisioned_sandbox(paths, say=lambda line: print(f"   {line}", flush=True)) as spec:
            result = run_stage(_testinfra(paths, spec, keyword), lambda line: None)
            return result.ok is True, ""

    junit = paths.work / "reports" / "testinfra.xml"
    return [Stage("testinfra", work=work, junit=junit)]


def _testinfra(paths: Paths, hosts: str, keyword: str) -> Stage:
    return _pytest(paths, "testinfra", Path(sys.prefix), ["tests/testinfra", f"--hosts={hosts}"], keyword)


def _pytest(paths: Paths, name: str, prefix: Path, arguments: Sequence[str], keyword: str) -> Stage:
    junit = paths.work / "reports" / f"{name.replace(' ', '-')}.xml"
    argv = [str(prefix / "bin" / "python"), "-m", "pytest", *arguments, f"--junitxml={junit}", "-q"]
    if keyword:
        argv += ["-k", keyword]
    there = (paths.root / arguments[0]).is_dir()
    return Stage(
        name,
        argv,
        cwd=paths.root,
        env=checks.environment_of(paths, prefix),
        live=True,
        junit=junit,
        skip="" if there else f"{arguments[0]} does not exist",
    )


def summarise(results: Sequence[StageResult], say: Callable[[str], None]) -> None:
    """Prints the slowest tests, one line per stage and the sum."""
    if not results:
        return
    lines = slowest(results)
    if lines:
        say("")
        say("Slowest tests:")
        for line in lines:
            say(line)
    say("")
    for result in results:
        say(result.line)
    failed = [result.name for result in results if result.ok is False]
    total = seconds(sum(result.seconds for result in results))
    say(f"FAILED: {', '.join(failed)} ({total})" if failed else f"all {len(results)} stages held ({total})")
