"""What every engine adapter answers, and the answers that all OpenAI-style servers share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..plan import Service
from .http import HttpError, Reply, request


class EngineError(ValueError):
    """An engine that this toolkit does not know."""


@dataclass(frozen=True)
class Finding:
    """One reason not to start: what is wrong and the way out."""

    id: str
    message: str
    fix: str

    def to_dict(self) -> dict[str, str]:
        return dict(vars(self))


@dataclass(frozen=True)
class Probe:
    """One answer of a live server. `final` means: asking again cannot change it."""

    ok: bool
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    final: bool = False


@dataclass(frozen=True)
class Ask:
    """One request of the gate's canary: a chat turn, or with `raw` a text to continue.

    `temperature` 0 is greedy. `schema` is a JSON schema that the answer must follow (structured output).
    """

    id: str
    prompt: str
    max_tokens: int
    raw: bool = False
    temperature: float = 0.0
    seed: int | None = None
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """What a server generated; `tokens` as it counts them, `seconds` from the connection to the last byte.

    `accept_length` is the mean number of tokens per step after the prefill's one, the model's own token included: 1.0
    where no draft was accepted; None where the server does not say.
    """

    text: str
    tokens: int
    finish: str
    seconds: float
    accept_length: float | None = None

    @property
    def tok_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


class GenerateError(Exception):
    """No usable answer; `final` means that asking again cannot change it."""

    def __init__(self, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class Engine(Protocol):
    """The adapter of one server software. Every live question has a hard deadline in seconds."""

    name: str
    # Seconds that a healthy server of this kind may take to answer `health`.
    health_s: float

    def static_checks(self, service: Service) -> list[Finding]:
        """What can be seen in the plan alone, before anything stops."""

    def phase(self, line: str) -> str | None:
        """The start-up phase that this log line announces."""

    def health(self, service: Service, timeout_s: float) -> Probe:
        """Tier 2: the server says that it is ready."""

    def identity(self, service: Service, timeout_s: float) -> Probe:
        """Tier 3, the part over HTTP: served names and the live settings that the engine shows."""

    def argv_matches(self, service: Service, live: list[str]) -> bool:
        """Tier 3, the part from /proc: the running command line is the planned one."""

    def complete(self, service: Service, timeout_s: float) -> Probe:
        """Tier 4: the server generates."""

    def generate(self, service: Service, ask: Ask, timeout_s: float) -> Answer:
        """Tiers 5 and 6: the answer to one request; raises `GenerateError`."""


class OpenAiEngine:
    """Probes that hold for any server with /health, /v1/models, /v1/chat/completions and /v1/completions."""

    name = "openai"
    health_s = 2.0
    phases: tuple[tuple[str, re.Pattern[str]], ...] = ()

    def static_checks(self, service: Service) -> list[Finding]:
        return []

    def phase(self, line: str) -> str | None:
        for name, pattern in self.phases:
            if pattern.search(line):
                return name
        return None

    def argv_matches(self, service: Service, live: list[str]) -> bool:
        return list(service.argv) == live

    def health(self, service: Service, timeout_s: float) -> Probe:
        try:
            reply = self._ask(service, "GET", "/health", None, timeout_s)
        except HttpError as error:
            return Probe(False, str(error))
        evidence = {"status": reply.status, "http_s": round(reply.seconds, 4)}
        return Probe(reply.status == 200, f"GET /health: HTTP {reply.status}", evidence)

    def identity(self, service: Service, timeout_s: float) -> Probe:
        try:
            reply = self._ask(service, "GET", "/v1/models", None, timeout_s)
            if reply.status != 200:
                return Probe(False, f"GET /v1/models: HTTP {reply.status}")
            listing = reply.json()
        except HttpError as error:
            return Probe(False, str(error))
        names = served_names(listing)
        evidence: dict[str, Any] = {"served": names, "identity": service.identity}
        if service.identity not in names:
            message = f"served names {names} do not contain {service.identity}: another variant answers"
            return Probe(False, message, evidence, final=True)
        return self.live_settings(service, timeout_s, evidence)

    def live_settings(self, service: Service, timeout_s: float, evidence: dict[str, Any]) -> Probe:
        """Compare what the engine shows about itself with the plan; a generic server shows nothing."""
        return Probe(True, f"serves as {service.identity}", evidence)

    def complete(self, service: Service, timeout_s: float) -> Probe:
        body = {
            "model": self.request_name(service),
            "messages": [{"role": "user", "content": "Count from 1 to 5."}],
            "max_tokens": 16,
            "temperature": 0.0,
            "stream": False,
        }
        try:
            reply = self._ask(service, "POST", "/v1/chat/completions", body, timeout_s)
            if reply.status != 200:
                # A server may still be warming up (5xx); a refused request (4xx) stays refused.
                text = reply.body[:200].decode("utf-8", "replace")
                evidence = {"status": reply.status}
                return Probe(False, f"completion: HTTP {reply.status}: {text}", evidence, stays_refused(reply.status))
            answer = reply.json()
        except HttpError as error:
            return Probe(False, str(error))
        probe = judge_completion(answer, reply, self.completion_names(service))
        problem = self.completion_problem(service, answer) if probe.ok else ""
        return Probe(False, f"completion: {problem}", probe.evidence, final=True) if problem else probe

    def generate(self, service: Service, ask: Ask, timeout_s: float) -> Answer:
        body: dict[str, Any] = {
            "model": self.request_name(service),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "stream": False,
        }
        if ask.seed is not None:
            body["seed"] = ask.seed
        if ask.schema is not None:
            schema = {"name": "answer", "schema": ask.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if ask.raw:
            path, body["prompt"] = "/v1/completions", ask.prompt
        else:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": ask.prompt}]
        answer, seconds = self.post(service, ask, path, body, timeout_s)
        try:
            choice = answer["choices"][0]
            if ask.raw:
                text = choice["text"]
            else:
                message = choice["message"]
                text = (message.get("content") or "") + (message.get("reasoning_content") or "")
            tokens, finish = answer["usage"]["completion_tokens"], choice["finish_reason"]
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise GenerateError(f"{ask.id}: no OpenAI-style reply ({type(error).__name__}: {error})", True) from error
        return checked_answer(ask, text, tokens, finish, seconds, self.accept_length(answer, tokens))

    def request_name(self, service: Service) -> str:
        """The model name to ask for: one that only this service answers to, where the engine can have several."""
        return service.identity

    def completion_problem(self, service: Service, answer: Any) -> str:
        """What else in a good completion speaks against this service having made it."""
        return ""

    def accept_length(self, answer: Any, tokens: Any) -> float | None:
        """See `Answer`; an OpenAI-style reply says nothing about drafts."""
        return None

    def post(self, service: Service, ask: Ask, path: str, body: dict[str, Any], timeout_s: float) -> tuple[Any, float]:
        """The JSON reply to one request and its seconds; raises `GenerateError`."""
        try:
            reply = self._ask(service, "POST", path, body, timeout_s)
            if reply.status != 200:
                words = reply.body[:200].decode("utf-8", "replace")
                raise GenerateError(f"{ask.id}: POST {path}: HTTP {reply.status}: {words}", stays_refused(reply.status))
            return reply.json(), reply.seconds
        except HttpError as error:
            raise GenerateError(f"{ask.id}: {error}") from error

    def completion_names(self, service: Service) -> tuple[str, ...]:
        """Model names that a completion of this service may carry."""
        return (service.identity,)

    def _ask(self, service: Service, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Reply:
        return request(service.slot.bind, service.slot.port, method, path, body, timeout_s)


def flag_values(argv: Sequence[str], flag: str, abbreviated: bool = False) -> list[str]:
    """Values of a flag, in order, as `--flag value` and `--flag=value`; an empty text where the value is missing.

    With `abbreviated`, its shortened forms count too (`--por 1`): for servers that accept them.
    """
    values = []
    for index, item in enumerate(argv):
        name, equals, value = item.partition("=")
        if name == flag or (abbreviated and len(name) > 2 and name.startswith("--") and flag.startswith(name)):
            values.append(value if equals else "".join(argv[index + 1 : index + 2]))
    return values


def owned_flags(
    service: Service, owned: Sequence[tuple[str, Sequence[str]]], abbreviated: bool = False
) -> list[Finding]:
    """Findings for flags that the variant must not set itself: `owned` is (flag, all the values that it shall have).

    Every occurrence counts: of a repeated flag a server takes the last one, so that one more would move the slot.
    """
    findings = []
    for flag, wanted in owned:
        values = flag_values(service.argv, flag, abbreviated)
        if sorted(values) != sorted(wanted):
            shown, needs = ", ".join(values) or "nowhere", " and ".join(wanted) or "none of it"
            message = f"argv has {flag} {shown}, the service needs exactly {needs}"
            fix = f"remove {flag} from the variant's raw_args; it is set from slot, variant, models and budgets"
            findings.append(Finding("argv_mismatch", message, fix))
    return findings


def stays_refused(status: int) -> bool:
    """True for a status that the same request would get again; a busy or starting server gives others."""
    return 400 <= status < 500 and status not in (408, 425, 429)


def checked_answer(
    ask: Ask, text: Any, tokens: Any, finish: Any, seconds: float, accept_length: float | None
) -> Answer:
    """The parts of a reply as an `Answer`; raises a final `GenerateError` when one is missing or of another type."""
    if not isinstance(text, str) or not text.strip():
        raise GenerateError(f"{ask.id}: the text is empty", True)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens <= 0:
        raise GenerateError(f"{ask.id}: completion_tokens is {tokens!r}, expected > 0", True)
    if not isinstance(finish, str) or not finish:
        raise GenerateError(f"{ask.id}: no finish reason", True)
    return Answer(text, tokens, finish, seconds, accept_length)


def served_names(listing: Any) -> list[str]:
    """Names in a /v1/models reply: ids and, where the server lists them, aliases."""
    names: list[str] = []
    data = listing.get("data") if isinstance(listing, dict) else None
    for entry in data if isinstance(data, list) else []:
        if not isinstance(entry, dict):
            continue
        aliases = entry.get("aliases")
        for name in [entry.get("id"), *(aliases if isinstance(aliases, list) else [])]:
            if isinstance(name, str) and name not in names:
                names.append(name)
    return names


def judge_completion(answer: Any, reply: Reply, names: tuple[str, ...]) -> Probe:
    """Real tokens: text, a finish reason, usage that counts them, under our own name."""
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        text = (message.get("content") or "") + (message.get("reasoning_content") or "")
        finish, usage, model = choice.get("finish_reason"), answer.get("usage") or {}, answer.get("model")
        tokens = usage.get("completion_tokens")
    except (AttributeError, KeyError, IndexError, TypeError):
        return Probe(False, f"completion: not an OpenAI-style reply: {reply.body[:160]!r}", final=True)
    evidence = {
        "text": text[:80],
        "finish_reason": finish,
        "completion_tokens": tokens,
        "model": model,
        "http_s": round(reply.seconds, 4),
    }
    if not text.strip():
        return Probe(False, "completion: the text is empty", evidence, final=True)
    if not finish:
        return Probe(False, "completion: no finish_reason", evidence, final=True)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens <= 0:
        return Probe(False, f"completion: usage.completion_tokens is {tokens!r}, expected > 0", evidence, final=True)
    if model not in names:
        return Probe(False, f"completion: model is {model!r}, expected {' or '.join(names)}", evidence, final=True)
    return Probe(True, f"{tokens} tokens in {reply.seconds:.2f} s", evidence)
