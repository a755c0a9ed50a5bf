"""llama.cpp on a CPU, started by `engines/llamacpp/serve.py`: one flag of the launcher per argument key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .checks import known

if TYPE_CHECKING:
    from .engine import Launch

SPEC_TYPES = ("none", "ngram-simple", "ngram-map-k")
# key -> lowest sensible value; every key becomes the launcher's flag of the same name with dashes.
_NUMBERS = {"threads": 1, "ctx": 64, "parallel": 1, "spec_ngram_size_n": 1, "spec_ngram_size_m": 1}
_KEYS = (*_NUMBERS, "spec_type")


class LlamaCpp:
    """The embedded default: real weights, no GPU."""

    name = "llamacpp"
    uses_gpus = False
    model_roles: tuple[str, ...] = ("target",)
    budgets: Mapping[str, float] = {"load_s": 120, "stall_s": 60}
    # A CPU is shared with whatever else runs on the machine: equal runs were seen to differ by a factor of three.
    gate: Mapping[str, Any] = {"tok_floor": 0.2}
    libraries: Mapping[str, str] = {"libgomp.so.1": "libgomp1"}
    owned_flags: Mapping[str, str] = {
        "--model": "the variant's model",
        "--alias": "the variant's served_model",
        "--host": "the slot's bind",
        "--port": "the slot's port",
        "--drain-s": "budgets.drain_s",
        **{"--" + key.replace("_", "-"): f"args.{key}" for key in _KEYS},
    }

    def problems(self, args: Mapping[str, Any], path: str) -> list[str]:
        found = []
        for key, value in args.items():
            if key not in _KEYS:
                found.append(
                    f"{path}.{key}: unknown argument of engine llamacpp.{known(key, _KEYS)} "
                    "Flags that the launcher knows and this list does not go into raw_args."
                )
            elif key == "spec_type":
                if value not in SPEC_TYPES:
                    found.append(f"{path}.{key}: {value!r} is no speculative type.{known(str(value), SPEC_TYPES)}")
            elif isinstance(value, bool) or not isinstance(value, int) or value < _NUMBERS[key]:
                found.append(f"{path}.{key}: must be a whole number from {_NUMBERS[key]} on, not {value!r}.")
        if args.get("spec_type", "none") == "none":
            found += [
                f"{path}.{key}: needs spec_type to be one of {', '.join(SPEC_TYPES[1:])}."
                for key in args
                if key.startswith("spec_ngram")
            ]
        return found

    def argv(self, launch: Launch) -> list[str]:
        argv = [f"{launch.release_path}/bin/python", launch.launcher_path]
        argv += ["--model", str(launch.models["target"]["path"])]
        argv += ["--alias", launch.served_model, "--alias", launch.identity]
        argv += ["--host", launch.bind, "--port", str(launch.port), "--drain-s", f"{launch.drain_s:g}"]
        for key in _KEYS:
            if key in launch.args:
                argv += ["--" + key.replace("_", "-"), str(launch.args[key])]
        return [*argv, *launch.raw_args]

    def settings(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return {"speculative_type": str(args.get("spec_type", "none"))}

    def claims(self, args: Mapping[str, Any]) -> dict[str, bool]:
        return {"drafts": args.get("spec_type", "none") != "none"}
