"""What `./specswap check` runs: linters, syntax checks, documentation of modules, and units as systemd sees them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from specswap.interpreters import Interpreter
from specswap.paths import Paths, command_environment
from specswap.stages import Stage

COLLECTION = "specswap.core"
#: Shell scripts that shellcheck reads.
SHELL_SCRIPTS = ("specswap", ".ci/run")


def environment_of(paths: Paths, prefix: Path) -> dict[str, str]:
    """The process environment of commands in one Python environment: its own commands come first on PATH."""
    environment = command_environment(paths)
    environment["PATH"] = f"{prefix / 'bin'}:{environment['PATH']}"
    environment["ANSIBLE_NOCOLOR"] = "1"
    return environment


def style_stages(paths: Paths, prefix: Path) -> list[Stage]:
    """Linters whose verdict does not depend on the interpreter."""
    env = environment_of(paths, prefix)

    def stage(name: str, *argv: str, skip: str = "") -> Stage:
        return Stage(name, [str(prefix / "bin" / argv[0]), *argv[1:]], cwd=paths.root, env=env, skip=skip)

    shellcheck = shutil.which("shellcheck")
    scripts = [script for script in SHELL_SCRIPTS if (paths.root / script).exists()]
    return [
        Stage(
            "shellcheck",
            [shellcheck or "shellcheck", *scripts],
            cwd=paths.root,
            skip="" if shellcheck else "shellcheck is not installed (apt-get install shellcheck)",
        ),
        stage("ruff check", "ruff", "check", "."),
        stage("ruff format", "ruff", "format", "--check", "."),
        stage("mypy", "mypy"),
        stage("yamllint", "yamllint", "--strict", "."),
    ]


def ansible_stages(paths: Paths, prefix: Path, label: str) -> list[Stage]:
    """What depends on the installed ansible-core: lint, syntax and the documentation of every module and filter."""
    env = environment_of(paths, prefix)
    playbooks = sorted(
        path.name for path in paths.root.glob("*.yml") if (paths.root / "playbooks" / path.name).exists()
    )
    binary = prefix / "bin"
    return [
        Stage(
            f"ansible-lint {label}",
            [str(binary / "ansible-lint"), "--profile", "production", "--offline", "--strict"],
            cwd=paths.root,
            env=env,
        ),
        Stage(
            f"syntax {label}",
            [str(binary / "ansible-playbook"), "--syntax-check", *playbooks],
            cwd=paths.root,
            env=env,
            skip="" if playbooks else "no playbooks",
        ),
        Stage(
            f"ansible-doc {label}",
            work=lambda: document(paths, binary / "ansible-doc", env),
            skip="" if documented(paths, "module") else "no modules",
        ),
    ]


def documented(paths: Paths, kind: str) -> list[str]:
    """Full names of the plugins of a kind (`module` or `filter`) that must have a page."""
    folder, suffix = {"module": ("plugins/modules", ".py"), "filter": ("filter_plugins", ".yml")}[kind]
    names = sorted(path.stem for path in (paths.root / folder).glob(f"*{suffix}"))
    return [f"{COLLECTION}.{name}" for name in names if not name.startswith("_")]


def document(paths: Paths, command: Path, env: Mapping[str, str]) -> tuple[bool, str]:
    """Asks ansible-doc for every page and looks that each came: it exits with 0 for a plugin that it cannot find."""
    pages = 0
    lacking: list[str] = []
    for kind in ("module", "filter"):
        names = documented(paths, kind)
        if not names:
            continue
        done = subprocess.run(
            [str(command), "-t", kind, "--json", *names],
            cwd=paths.root,
            env=dict(env),
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            found = json.loads(done.stdout)
        except ValueError:
            return False, f"ansible-doc -t {kind}: {done.stderr.strip() or 'no answer'}"
        for name in names:
            page = found.get(name, {}).get("doc") or {}
            if page.get("short_description"):
                pages += 1
            else:
                lacking.append(f"{kind} {name}")
    return not lacking, f"no page: {', '.join(lacking)}" if lacking else f"{pages} pages"


def target_stage(paths: Paths, interpreter: Interpreter) -> Stage:
    """`host/` compiled and imported, `bench/` compiled, on an interpreter that only targets have."""
    program = (
        "import compileall, importlib, pkgutil, sys\n"
        "ok = all([compileall.compile_dir(d, quiet=1, force=True) for d in sys.argv[1:]])\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import specswap_host\n"
        "names = [m.name for m in pkgutil.walk_packages(specswap_host.__path__, 'specswap_host.')]\n"
        "for name in names:\n"
        "    if not name.endswith('__main__'):\n"
        "        importlib.import_module(name)\n"
        "sys.exit(0 if ok and names else 1)\n"
    )
    env = command_environment(paths)
    # Byte code of old interpreters must not pile up beside the sources.
    env["PYTHONPYCACHEPREFIX"] = str(paths.work / "pycache")
    return Stage(
        f"target imports {interpreter.version}",
        [str(interpreter.path), "-c", program, "host", "bench"],
        cwd=paths.root,
        env=env,
    )
