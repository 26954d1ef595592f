"""How much of everything: each limit is checked where a value comes in, with an error that names the value and the limit."""

from __future__ import annotations

from agentrt.errors import UsageError

payload_bytes_max = 1024 * 1024
error_chars_max = 8_000
traceback_chars_max = 16_000
name_chars_max = 200
delay_s_max = 10 * 366 * 86_400.0
retry_after_s_min = 0.1  # costs no attempt, so it must not become a busy loop
send_batch_max = 500  # each distinct key holds a lock until commit
attempts_max = 1_000_000
hops_max = 100  # how far a message may be from the first of its tree
options_max = 25  # of one question
priority_lowest = 9


def require_within(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside its limits, naming both. Raises `UsageError`."""
    if not isinstance(value, (int, float)) or not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.")


def require_whole(name: str, value: int, low: int, high: int) -> None:
    """Refuse what is no whole number within its limits. Raises `UsageError`."""
    require_within(name, value, low, high)
    if type(value) is not int:
        raise UsageError(f"{name} is {value!r}; it must be a whole number from {low} to {high}.")


def require_name(what: str, value: str) -> None:
    """Refuse a name (agent, key, dedup) that is empty, too long or not storable. Raises `UsageError`."""
    if not isinstance(value, str) or not value:
        raise UsageError(f"{what} is {value!r}; it must be a text of 1 to {name_chars_max} characters.")
    if len(value) > name_chars_max:
        raise UsageError(f"{what} has {len(value)} characters; at most {name_chars_max} are allowed.")
    if "\x00" in value or any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise UsageError(f"{what} is {value!r}; it holds a NUL or a lone surrogate, which no database stores.")
