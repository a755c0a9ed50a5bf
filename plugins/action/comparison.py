"""Compare two variants through a job on the host; bring the result home and write the reports."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.specswap.core.plugins.plugin_utils import bench, resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.job import (
    GOOD,
    UNTOUCHED,
    HostCommandError,
    compare_plan,
    failure,
)
from ansible_collections.specswap.core.plugins.plugin_utils.render import with_unit_text
from ansible_collections.specswap.core.plugins.plugin_utils.specswap_bench import report


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "services": {"type": "list", "elements": "dict", "required": True},
        "slot": {"type": "str"},
        "arms": {"type": "raw", "required": True},
        "pairs": {"type": "int", "default": 6},
        "quick": {"type": "bool", "default": False},
        "suite": {"type": "str", "default": "story"},
        "max_tokens": {"type": "int", "default": 256},
        "temperature": {"type": "float", "default": 0.0},
        "release_path": {"type": "str", "required": True},
        "results_dir": {"type": "str", "default": ""},
        "reconnect_s": {"type": "float", "default": 600.0},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        slot = resolve.pick_slot(args["services"], args["slot"])
        arms = resolve.arms(args["services"], args["arms"], slot)
        settings = bench.settings(args)
        plan = compare_plan(
            {arm: with_unit_text(resolve.pick(args["services"], arm, slot)) for arm in arms},
            self._driver(arms, slot, args),
            pairs=bench.pairs(args["pairs"]),
            quick=args["quick"],
            **settings,
        )
        results = bench.results_folder(args["results_dir"], make=not self.checking)
        if self.checking:
            prompts = len(settings["suite"]["prompts"])
            self.say(
                f"would swap slot {slot} {2 * plan['pairs']} times between {arms[0]} and {arms[1]}, measure "
                f"{prompts} prompts of suite {args['suite']} each time, and swap back"
            )
            return {"changed": True}
        result = self.host_job(args["reconnect_s"]).run(plan)
        result.pop("events")
        result.update(changed=result["outcome"] not in UNTOUCHED, failed=result["outcome"] not in GOOD)
        if result["outcome"] in UNTOUCHED:
            result["msg"] = failure(result)
            return self.brief(result)
        session = f"/var/lib/specswap/{slot}/sessions/{plan['job']}"
        try:
            comparison = self._fetch(f"{session}/comparison.json")
            directory = write_results(comparison, results)
        except (OSError, ValueError, HostCommandError, AnsibleConnectionFailure) as error:
            text = lost(str(error), self.host, session, results)
            result.update(failed=True, msg=text if result["outcome"] in GOOD else f"{failure(result)}\n{text}")
            return self.brief(result)
        result.update(results=str(directory), verdict=comparison["verdict"])
        self.say(f"\n{report.render_table(comparison)}\nReport: {directory / 'report.html'}")
        result["msg"] = failure(result) if result["failed"] else comparison["verdict"]["text"]
        return self.brief(result)

    def _driver(self, arms: list[str], slot: str | None, args: dict[str, Any]) -> dict[str, str]:
        """Who drives, with the whole command: what a comparison is given holds no secret."""
        driver = self.controller()
        given = {"arms": ",".join(arms), "slot": slot, "suite": args["suite"], "pairs": args["pairs"]}
        words = [f"-e {shlex.quote(f'{key}={value}')}" for key, value in given.items() if value]
        quick = ["-e quick=true"] if args["quick"] else []
        return {**driver, "command": " ".join([driver["command"], *words, *quick])}

    def _fetch(self, path: str) -> dict[str, Any]:
        rc, out, err = self.shell(f"cat {shlex.quote(path)}")
        if rc != 0:
            raise HostCommandError(err.strip() or f"{path} cannot be read")
        comparison: dict[str, Any] = json.loads(out)
        return comparison


def lost(why: str, host: str, session: str, results: Path) -> str:
    """What to do when the host has a session's result and the controller could not keep it."""
    name = session.rpartition("/")[2]
    target = shlex.quote(str(results / name / "comparison.json"))
    return (
        f"The result did not come home: {why}\n"
        f"What was measured is on {host} in {session}. Fetch it, then make its report:\n"
        f"  ansible {host} -b -m ansible.builtin.fetch -a 'src={session}/comparison.json dest={target} flat=true'\n"
        f"  python -m specswap_bench report {target} --out {shlex.quote(str(results / name))}"
    )


def write_results(comparison: dict[str, Any], results: Path) -> Path:
    """`<results>/<session>/` with JSON and reports, written at once by rename; `latest` points to it.

    An existing session is never overwritten: the same session again gets a number behind its name.
    """
    half = Path(tempfile.mkdtemp(prefix=".writing-", dir=results))
    try:
        (half / "comparison.json").write_text(json.dumps(comparison, indent=1, sort_keys=True) + "\n", "utf-8")
        (half / "report.md").write_text(report.render_markdown(comparison), "utf-8")
        (half / "report.html").write_text(report.render_html(comparison), "utf-8")
        half.chmod(0o755)
        directory = _rename_to_free(half, results, str(comparison["session"]))
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    link = results / f".latest-{os.getpid()}"
    link.symlink_to(directory.name)
    link.replace(results / "latest")
    return directory


def _rename_to_free(half: Path, results: Path, session: str) -> Path:
    for number in range(1, 1000):
        directory = results / (session if number == 1 else f"{session}-{number}")
        try:
            # mkdir claims the name; renaming over an empty directory of ours is atomic.
            directory.mkdir()
        except FileExistsError:
            continue
        half.rename(directory)
        return directory
    raise HostCommandError(f"{results} holds a thousand results of session {session}; move them away.")
