"""Settings, where they come from, and the one place that sets up logging.

A setting is an option of the command line, else an environment variable, else a default. Secrets live in the environment
and are taken out of every log line here.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import structlog

from agentrt import codec
from agentrt.errors import ConfigError
from agentrt.limits import delay_s_max, payload_bytes_max
from agentrt.model import Claimed

database_variable = "AGENTRT_DATABASE_URL"
keep_s_min = 60.0  # longer than any statement that is under way may take
default_database = "embedded:.agentrt/postgres"
_schema_rule = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,47}")
_secret_names = re.compile(
    r"password|passwd|secret|token|api_?key|webhook|authorization|dsn|database_url", re.IGNORECASE
)
_url_password = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)(?P<password>[^\s@]+)@", re.IGNORECASE)
_key_value_password = re.compile(r"(?P<head>\bpassword\s*=\s*)(?P<password>'[^']*'|[^\s&]+)", re.IGNORECASE)
_webhook_path = re.compile(r"(?P<head>/api(?:/v\d+)?/webhooks/\d+/)[\w-]+")
_hidden = "***"


class HasJob(Protocol):
    @property
    def job(self) -> Claimed: ...


# What runs here: each log line names its job. `context.running` is the same as an attempt.
here: ContextVar[HasJob | None] = ContextVar("agentrt_attempt", default=None)


@dataclass(frozen=True, slots=True)
class Settings:
    """How one supervisor process behaves. Times in seconds."""

    slots: int = 100
    lease_s: float = 5.0
    heartbeat_s: float | None = None  # None: a third of the lease
    poll_s: float = 30.0
    drain_s: float = 30.0
    warm_s: float = 60.0  # so long does a job that only waits stay in memory
    step_bytes_max: int = payload_bytes_max  # the largest value of a step, as JSON
    beat_s: float = 10.0  # one statement: the supervisor's row, its own bell, what is due
    deaf_s: float = 1.0  # so long may the listener take to hear that bell
    stall_s: float = 1.0
    keep_s: float = 7 * 86_400.0  # so long do finished jobs stay, with their steps
    start_s: float = 60.0  # so long is a database waited for that is not up yet

    def __post_init__(self) -> None:
        self._require("slots", 1, 100_000)
        self._require("lease_s", 0.3, 86_400)
        self._require("poll_s", 0.05, 86_400)
        if self.heartbeat_s is not None and not 0.05 <= self.heartbeat_s <= self.lease_s / 3:
            raise ConfigError(
                f"The heartbeat is {self.heartbeat_s:g} s and the lease {self.lease_s:g} s; a heartbeat must be from 0.05 s to a"
                f" third of the lease ({self.lease_s / 3:g} s), or one lost beat would lose the lease."
            )
        self._require("drain_s", 0, 86_400)
        self._require("warm_s", 0, 86_400)
        self._require("step_bytes_max", 1_000, 256 * 1024 * 1024)
        self._require("keep_s", keep_s_min, delay_s_max)
        self._require("start_s", 0, 86_400)

    def _require(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise ConfigError(f"{name} is {value:g}; it must be from {low:g} to {high:g}.")


def database_url(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Where the database is: what was given, else the environment, else an embedded PostgreSQL under `.agentrt/`.

    Raises `ConfigError` for an address of an unknown kind; the text holds no password.
    """
    url = given or environ.get(database_variable) or default_database
    scheme, found, _ = url.partition(":")
    if scheme == "embedded" and found:
        return url
    if scheme in ("postgresql", "postgres") and "://" in url:
        _require_readable(url)
        return url
    if scheme == "sqlite":
        raise ConfigError("SQLite is not built yet. Use postgresql://… or embedded:PATH.")
    raise ConfigError(
        "The database address has an unknown form (it is not shown: it may hold a password). Use"
        f" postgresql://user@host/name or embedded:PATH (option --database or variable {database_variable})."
    )


def _require_readable(url: str) -> None:
    """Refuse an address that would be split in the wrong place, without quoting any of it. Raises `ConfigError`."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
        whole = parts.netloc.count("@") <= 1 and "@" not in parts.path + parts.query and not parts.fragment
    except ValueError:
        whole = False
    if not whole:
        raise ConfigError(
            "The database address cannot be read. In user and password write each of / : @ # ? % [ ] percent-encoded, such as"
            f" %40 for @ (option --database or variable {database_variable})."
        )


def schema_name(name: str) -> str:
    """A schema name that is safe as an identifier and as a part of a channel name. Raises `ConfigError`."""
    if not _schema_rule.fullmatch(name) or name.lower().startswith("pg_"):
        raise ConfigError(
            f"The schema name {name!r} is not usable: letters, digits, '_' and '-', a letter or '_' first, at most 48"
            " characters, not beginning with 'pg_'."
        )
    return name


def embedded_directory(url: str) -> Path:
    """The folder of an `embedded:PATH` address."""
    return Path(url.partition(":")[2] or default_database.partition(":")[2]).expanduser().absolute()


def about(job: Claimed) -> dict[str, object]:
    """How a log line names a job."""
    return {"job_id": job.id, "agent": job.agent, "attempt": job.attempt, "key": job.key}


def redact(text: str) -> str:
    """`text` without what gives access: passwords in addresses, webhook tokens, and values of secret variables."""
    return _without(text, _environment_secrets())


def _without(text: str, secrets: tuple[str, ...]) -> str:
    text = _url_password.sub(rf"\g<head>{_hidden}@", text)
    text = _key_value_password.sub(rf"\g<head>{_hidden}", text)
    text = _webhook_path.sub(rf"\g<head>{_hidden}", text)
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, _hidden)
    return text


def _environment_secrets() -> tuple[str, ...]:
    """The secret texts that this process was given, longest first."""
    return _secrets_in(tuple(os.environb.items()))


@lru_cache(maxsize=2)
def _secrets_in(environment: tuple[tuple[bytes, bytes], ...]) -> tuple[str, ...]:
    """Kept for the environment as it is: to look through all of it for each word of each log line cost a third of a
    millisecond a line.
    """
    secrets: set[str] = set()
    for name, value in ((os.fsdecode(name), os.fsdecode(value)) for name, value in environment):
        if _secret_names.search(name) and len(value) >= 8:
            if "://" in value:
                password = _password_of(value)
                secrets.update(p for p in (password, unquote(password)) if len(p) >= 4)
            else:
                secrets.add(value)
    return tuple(sorted(secrets, key=len, reverse=True))


def _password_of(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[0].partition(":")[2]
    except ValueError:
        return ""


def _about(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """What each line says besides: the job, the level, the time."""
    attempt = here.get()
    line = event if attempt is None else {**about(attempt.job), **event}
    line["level"] = method
    line["timestamp"] = datetime.now(UTC).isoformat()[: -len("+00:00")] + "Z"
    return line


class _Redactor:
    """Takes secrets out of log lines. A line is made first and looked at as a whole: most hold nothing of the kind."""

    _signs = (b"://", b"password", b"webhooks")
    _fresh_s = 0.1  # to read the environment for each line would cost more than the line

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._secrets: tuple[str, ...] = ()
        self._signs_now: tuple[bytes, ...] = self._signs
        self._read_at = -math.inf

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> Any:
        """The rendered line, or (for a terminal) the event."""
        now = time.monotonic()
        if now - self._read_at > self._fresh_s:
            self._secrets = _environment_secrets()
            spelled = (_line(secret) for secret in self._secrets)
            self._signs_now = self._signs + tuple(secret[1:-1].lower() for secret in spelled if secret is not None)
            self._read_at = now
        line = _line(event)
        if line is None or any(map(line.lower().__contains__, self._signs_now)):
            event = {name: self._cleaned(value) for name, value in event.items()}
            line = _line(event) or json.dumps(event, default=str).encode()
        return line.decode() if self._as_json else event

    def _cleaned(self, value: object) -> object:
        """The same without secrets, also inside of lists and objects; what is neither, nor a number, is its text."""
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, Mapping):
            return {str(name): self._cleaned(part) for name, part in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._cleaned(part) for part in value]
        return _without(str(value), self._secrets)


def _line(value: object) -> bytes | None:
    """None: it holds what UTF-8 or 64 bits cannot (a lone surrogate, a large integer), and so must be looked at part by part."""
    try:
        return codec.dump(value)
    except TypeError:
        return None


class _Lines:
    """Writes each line at once, to standard error as it is then: a logger is kept for good, and that may be replaced."""

    _one_at_a_time = threading.Lock()  # the heart has a thread of its own, and a long line goes in parts

    def msg(self, line: str) -> None:
        with self._one_at_a_time:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = msg


def setup_logging(level: str = "info", *, as_json: bool | None = None) -> None:
    """One line an event on standard error: JSON unless that is a terminal. Raises `ConfigError` for an unknown level."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"The log level {level!r} is unknown. Use debug, info, warning or error.")
    if as_json is None:
        as_json = not sys.stderr.isatty()
    steps: list[Any] = [structlog.contextvars.merge_contextvars, _about, structlog.processors.format_exc_info]
    steps.append(_Redactor(as_json=as_json))  # after the text of an exception was made, before anything is drawn
    if not as_json:
        steps.append(structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback))
    structlog.configure(
        processors=steps,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: _Lines(),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=max(number, logging.WARNING), format="%(message)s", force=True)
