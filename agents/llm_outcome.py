"""What an answer of a model endpoint means for the job: run later, try again with backoff, or failed for good.

Pure: from a status, headers and a body to the exception that the agent raises. The codes are those that OpenAI,
Anthropic, Google, Moonshot, Bedrock and llama.cpp send.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from agentrt import Fail, RetryAfter

wait_s_max = 7 * 86_400.0  # a longer wait that an endpoint asks for is cut to this
_wait_s_min = 0.5
_text_chars_max = 500

key_variables = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
_key_like = re.compile(r"\bsk-[\w*-]{6,}")

_money = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "exceeded_current_quota_error",
    "billing_error",
}
_too_long = {"context_length_exceeded", "exceed_context_size_error", "request_too_large"}
_too_long_texts = ("maximum context length", "reduce the length of the messages", "prompt is too long")

# The status that stands for an error inside a stream that began with 200.
_status_of = {
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "resource_exhausted": 429,
    "server_error": 500,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
} | dict.fromkeys(_money - {"billing_error"}, 429)


class ModelUnavailable(Exception):
    """The endpoint gave no whole answer now: the attempt failed, and is repeated with backoff."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as an endpoint tells it: `status` is 200 when it came inside a stream."""

    status: int
    headers: Mapping[str, str]
    body: object


def outcome(refusal: Refusal, where: str) -> Exception:
    """The exception that ends the attempt; `where` names the model and the host, as in "gpt-5 at api.openai.com".

    Returns:
        RetryAfter: 429, 503 or 529 with a usable wait, cut to `wait_s_max`.
        Fail: the account is out of money, the key is refused, the prompt is too long, or the request is wrong.
        ModelUnavailable: everything that another try may mend, such as a 429 that does not say when.
    """
    error = _error_object(refusal.body)
    words = {str(error[name]).lower() for name in ("code", "type", "status") if error.get(name) is not None}
    text = _text(error, refusal.body)
    status = refusal.status if refusal.status >= 400 else _stream_status(error, words)
    said = f"({status}{''.join(f', {word}' for word in sorted(words - {str(status)}))}: {text})"
    if status == 402 or (status < 500 and _is_about_money(error, words, text)):
        return Fail(
            f"{where} refuses: the account is out of credit or over a spending limit {said}. Top it up or raise the limit."
        )
    if status in (429, 503, 529) and (wait_s := told_wait_s(refusal.headers, error)) is not None:
        return later(wait_s, f"{where} asks to wait {wait_s:g} s {said}")
    if status in (408, 409, 425, 429) or status >= 500:
        return ModelUnavailable(f"{where} cannot answer now {said}.")
    if status in (401, 403):
        return Fail(f"{where} refuses the key {said}. Set {' or '.join(key_variables)}, or its rights at the provider.")
    if words & _too_long or (status in (400, 413, 422) and any(known in text.lower() for known in _too_long_texts)):
        return Fail(
            f"The prompt is too long for {where} {said}{_sizes(error)}. Send a shorter one, or use a larger model."
        )
    if status == 404:
        return Fail(f"{where} does not exist {said}. Check the name of the model and the base URL.")
    return Fail(f"{where} refuses the request {said}.")


def later(wait_s: float, reason: str) -> RetryAfter:
    """Run again after `wait_s`, within limits, and a random share more: who waits together need not come back together."""
    seconds = min(max(wait_s, _wait_s_min), wait_s_max)
    return RetryAfter(seconds + random.uniform(0.05, 0.2 + min(seconds, 60) / 10), reason)  # noqa: S311 - spreads load


def told_wait_s(headers: Mapping[str, str], error: Mapping[str, object]) -> float | None:
    """The wait that an answer asks for: `retry-after-ms`, `retry-after` (seconds or date), or Google's RetryInfo.

    None for what is no wait: absent, empty, not above 0, in the past, or rubbish.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    in_ms = _seconds(lower.get("retry-after-ms", ""))
    if in_ms is not None:
        return in_ms / 1000
    told = lower.get("retry-after", "")
    in_s = _seconds(told)
    return in_s if in_s is not None else _until(told, lower.get("date", "")) or _google_wait_s(error)


def _seconds(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _until(date: str, now: str) -> float | None:
    """From `now` (the server's own clock, else ours) to `date`, both as in HTTP headers."""
    moment = _moment(date)
    seconds = (moment - (_moment(now) or datetime.now(UTC))).total_seconds() if moment else 0.0
    return seconds if seconds > 0 else None


def _moment(date: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _google_wait_s(error: Mapping[str, object]) -> float | None:
    for detail in _details(error):
        if "retryDelay" in detail:
            return _seconds(str(detail["retryDelay"]).removesuffix("s"))
    return None


def _is_about_money(error: Mapping[str, object], words: set[str], text: str) -> bool:
    per_day = "resource_exhausted" in words and any(
        "PerDay" in str(violation) for detail in _details(error) for violation in _dicts(detail.get("violations"))
    )
    return bool(words & _money) or per_day or "credit balance is too low" in text


def _details(error: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    return _dicts(error.get("details"))


def _dicts(value: object) -> Iterator[Mapping[str, object]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _stream_status(error: Mapping[str, object], words: set[str]) -> int:
    """The status that an error inside a stream stands for: its numeric code, else by its words, else 500."""
    code = str(error.get("code"))
    if code.isdigit() and 400 <= int(code) <= 599:
        return int(code)
    return next((_status_of[word] for word in sorted(words) if word in _status_of), 500)


def _error_object(body: object) -> Mapping[str, object]:
    """The object with code, type and message, out of the wrappings of the vendors (Google sends a list)."""
    if isinstance(body, list):
        body = body[0] if body else None
    if isinstance(body, dict):
        inner = body.get("error")
        return inner if isinstance(inner, dict) else body
    return {}


def _text(error: Mapping[str, object], body: object) -> str:
    message = error.get("message") or error.get("error") or (body if isinstance(body, str) else "") or "no text"
    return without_keys(" ".join(str(message).split()))[:_text_chars_max]


def _sizes(error: Mapping[str, object]) -> str:
    """What llama.cpp adds: how long the prompt is, and how long it may be."""
    if "n_prompt_tokens" in error and "n_ctx" in error:
        return f"; it has {error['n_prompt_tokens']} tokens, the context holds {error['n_ctx']}"
    return ""


def without_keys(text: str) -> str:
    """`text` without the keys of this process, and without what looks like one: endpoints repeat a wrong key."""
    for variable in key_variables:
        key = os.environ.get(variable, "").strip()
        if len(key) >= 8:
            text = text.replace(key, "***")
    return _key_like.sub("***", text)
