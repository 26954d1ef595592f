"""Values to JSON text and back, such that what comes out equals what went in, or is refused with the path to it.

The one module that knows orjson. A schema is a pydantic `TypeAdapter`; a value is validated strictly, encoded, decoded
again and compared, so a type that JSON would change in silence (a tuple under `Any`, an integer key, a NaN) never leaves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from hashlib import sha256
from itertools import zip_longest
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from agentrt.errors import PayloadInvalid, PayloadTooLarge
from agentrt.limits import error_chars_max, payload_bytes_max
from agentrt.schema import Adapter as Adapter
from agentrt.schema import anything as anything
from agentrt.schema import first_line, is_plain

_int_min, _int_max = -(2**63), 2**63 - 1
_may_overflow = re.compile(r"[eE]\+?\d{3}|NaN|Infinity")


def encode(value: Any, adapter: Adapter = anything, *, at: str = "$", bytes_max: int = payload_bytes_max) -> bytes:
    """The JSON text of `value`, checked against `adapter`.

    Raises:
        PayloadInvalid: it does not fit the schema, or would come back as something else; names the path from `at`.
        PayloadTooLarge: over `bytes_max` bytes.
    """
    try:
        text = _encode_plain(value, adapter) if is_plain(adapter) else None
        if text is None or len(text) > bytes_max:
            text = _encode(value, adapter, at, bytes_max)
        return text
    except RecursionError:
        raise PayloadInvalid(at, "it is nested too deeply, or holds itself.") from None


def takes_null(adapter: Adapter) -> bool:
    """Whether None is always stored as null under this schema, so that it need not be looked at each time."""
    return is_plain(adapter) and _encode_plain(None, adapter) == b"null"


def _encode_plain(value: Any, adapter: Adapter) -> bytes | None:
    """The text of a value that is JSON already, and that a plain schema leaves as it is: most messages, at a tenth of the cost.

    A whole number may become the float that equals it. None: it must be looked at with care.
    """
    if not _is_json(value):
        return None
    try:
        validated = adapter.validator.validate_python(value, strict=True)
        return orjson.dumps(validated) if validated == value else None
    except (ValidationError, TypeError):
        return None


def _is_json(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return value.isascii() and "\x00" not in value
    if kind is int:
        return _int_min <= value <= _int_max  # type: ignore[no-any-return]  # a comparison of integers
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        for name, item in value.items():  # noqa: SIM110 - a generator costs half as much again
            if not (type(name) is str and _is_json(name) and _is_json(item)):
                return False
        return True
    if kind is list:
        return all(map(_is_json, value))
    return kind is bool or value is None


def _encode(value: Any, adapter: Adapter, at: str, bytes_max: int) -> bytes:
    validated = _validated(adapter.validate_python, value, at)
    _require_same(value, validated, at, by_schema=True)
    try:
        plain = adapter.dump_python(validated, mode="json", warnings="error")
    except (PydanticSerializationError, ValueError) as error:
        _require_plain(validated, at)  # names the path of what it finds
        raise PayloadInvalid(at, f"{type(validated).__name__} cannot be stored as JSON: {first_line(error)}") from None
    _require_plain(plain, at)
    text = orjson.dumps(plain)
    if len(text) > bytes_max:
        raise PayloadTooLarge(at, f"it takes {len(text):,} bytes as JSON; at most {bytes_max:,} are allowed.")
    _require_same(validated, _validated(adapter.validate_json, text, at), at)
    return text


def decode(text: str | bytes, adapter: Adapter = anything, *, at: str = "$") -> Any:
    """The value of a stored JSON text under `adapter`. Raises `PayloadInvalid` when it does not fit."""
    value = _validated(adapter.validator.validate_json, text, at)
    if _may_overflow.search(text if isinstance(text, str) else text.decode(errors="replace")):
        _require_same(value, value, at)  # 1e400 is read as infinity, which nobody sent
        parse(text)  # NaN is no JSON
    return value


def parse(text: str | bytes) -> Any:
    """The plain JSON value of a text. Raises `PayloadInvalid` when it is no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise PayloadInvalid("$", f"it is not JSON: {error}") from None


def dump(value: Any) -> bytes:
    """JSON for people and pipes (not for storage): unknown types become text instead of an error."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)


def fingerprint(value: object) -> str:
    """A short mark of a value's content, the same in every process: one part for each argument.

    What JSON cannot hold (a client, a lock) counts by its type alone.
    """
    parts = value if isinstance(value, tuple) else (value,)
    return ".".join(sha256(_content(part)).hexdigest()[:8] for part in parts) or "-"


def _content(value: object) -> bytes:
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_SUBCLASS
    try:
        return orjson.dumps(value, default=_content_of_other, option=options)
    except (TypeError, ValueError, RecursionError):  # too large an integer, a lone surrogate, a circle
        return type(value).__qualname__.encode()


def _content_of_other(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="python")
    if isinstance(value, set | frozenset):
        return sorted(_content(item).decode() for item in value)
    plain: tuple[Callable[[Any], Any], ...] = (str, int, float, list, dict, tuple)
    for kind in plain:  # a subclass of a plain type counts as that
        if isinstance(value, kind):  # type: ignore[arg-type]  # each is a type, called as a function below
            return kind(value)
    if isinstance(value, bytes | Decimal):
        return str(value)
    return f"<{type(value).__qualname__}>"


def storable_text(text: str, chars_max: int = error_chars_max) -> str:
    """A text for an error column: NUL and lone surrogates spelled out, cut with a mark when it is too long."""
    clean = text.replace("\x00", "\\x00")
    if not clean.isascii():
        clean = "".join(f"\\u{ord(c):04x}" if 0xD800 <= ord(c) <= 0xDFFF else c for c in clean)
    if len(clean) > chars_max:
        clean = f"{clean[:chars_max]} … [cut: {len(clean):,} characters]"
    return clean


def marked(value: Any) -> bytes:
    """A stored form of a result that is refused: each part that JSON cannot hold becomes {"$unstorable": its repr}."""
    return orjson.dumps(_mark(value, 0))[:payload_bytes_max] if _small(value) else b'{"$unstorable": "too large"}'


def _validated(validate: Callable[..., Any], value: Any, at: str) -> Any:
    try:
        return validate(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = at + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        given = storable_text(repr(first["input"]), 80)
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise PayloadInvalid(path, f"{first['msg']}, got {given}{more}") from None
    except RecursionError:
        raise PayloadInvalid(at, "it is nested too deeply, or holds itself.") from None


def _require_plain(value: Any, path: str) -> None:
    """Refuse what JSON text or the database cannot hold: NUL, lone surrogates, NaN, integers beyond 64 bits."""
    kind = type(value)
    if kind is str:
        if "\x00" in value:
            raise PayloadInvalid(
                path, f"the text holds a NUL character (at {value.index(chr(0))}), which JSON columns refuse."
            )
        if not value.isascii() and any(0xD800 <= ord(c) <= 0xDFFF for c in value):
            raise PayloadInvalid(path, "the text holds a lone surrogate, which is not valid Unicode.")
    elif kind is float:
        if not math.isfinite(value):
            raise PayloadInvalid(path, f"{value} has no form in JSON.")
    elif kind is int:
        if not _int_min <= value <= _int_max:
            size = value.bit_length()
            raise PayloadInvalid(
                path, f"the integer needs {size} bits; at most 64 (signed) come back exact. Send it as text."
            )
    elif kind is dict:
        for name, item in value.items():
            if type(name) is not str:
                raise PayloadInvalid(path, f"the key {name!r} is no text, and would come back as one.")
            _require_plain(name, f"{path}.{name!r}")
            _require_plain(item, f"{path}.{name}")
    elif kind is list:
        for index, item in enumerate(value):
            _require_plain(item, f"{path}[{index}]")
    elif kind is not bool and value is not None:
        raise PayloadInvalid(path, f"{kind.__name__} cannot be stored as JSON.")


def _require_same(sent: Any, back: Any, path: str, *, by_schema: bool = False) -> None:
    """Refuse a value whose decoded form differs in type or content anywhere.

    `by_schema`: `back` is what the schema made of it. Types must be the same all the same, but an annotated validator may
    change a value (strip a text), and a whole number may stand for a float that equals it (PEP 484).
    """
    if by_schema and type(sent) is int and type(back) is float and int(back) == sent and _int_min <= sent <= _int_max:
        return
    if isinstance(sent, float) and not math.isfinite(sent):
        raise PayloadInvalid(path, f"{sent} has no form in JSON.")
    if type(sent) is not type(back):
        raise PayloadInvalid(
            path,
            f"{type(sent).__name__} would come back as {type(back).__name__}. Annotate the parameter, or convert it.",
        )
    if isinstance(sent, (set, frozenset)):
        _require_same_set(sent, back, path, by_schema=by_schema)
        return
    parts = _parts(sent, back)
    if parts is None:
        if not by_schema and sent != back:
            raise PayloadInvalid(
                path, f"{storable_text(repr(sent), 80)} would come back as {storable_text(repr(back), 80)}."
            )
        return
    for name, one, other in parts:
        if one is _absent or other is _absent:
            raise PayloadInvalid(f"{path}{name}", "it would not come back under the same name or place.")
        _require_same(one, other, f"{path}{name}", by_schema=by_schema)


def _require_same_set(sent: Any, back: Any, path: str, *, by_schema: bool) -> None:
    """As `_require_same`, for what has no places to compare by, and in which True is found where 1 is."""
    same = _kind(sent) == _kind(back) if by_schema else _typed(sent) == _typed(back)
    if not same:
        raise PayloadInvalid(
            path,
            f"{storable_text(repr(sent), 80)} would come back as {storable_text(repr(back), 80)}. Convert its elements.",
        )


def _typed(value: Any) -> Any:
    """A set, or what can stand in one, with its type, all the way down."""
    return _with_types(value, lambda leaf: (type(leaf), leaf))


def _kind(value: Any) -> Any:
    """The types alone; a whole number counts as a float."""
    return _with_types(value, lambda leaf: float if type(leaf) is int else type(leaf))


def _with_types(value: Any, of_leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, (set, frozenset, tuple)):
        parts = (_with_types(part, of_leaf) for part in value)
        return type(value), tuple(parts) if isinstance(value, tuple) else frozenset(parts)
    return of_leaf(value)


_absent = object()


def _parts(sent: Any, back: Any) -> list[tuple[str, Any, Any]] | None:
    """The parts of two values of one type side by side, each with its path; None for what has no parts."""
    if isinstance(sent, dict):
        by_key = {(type(key), key): value for key, value in back.items()}
        parts = [(f".{key}", value, by_key.pop((type(key), key), _absent)) for key, value in sent.items()]
        return parts + [(f".{key}", _absent, value) for (_, key), value in by_key.items()]
    if isinstance(sent, (list, tuple)):
        pairs = zip_longest(sent, back, fillvalue=_absent)
        return [(f"[{index}]", one, other) for index, (one, other) in enumerate(pairs)]
    if isinstance(sent, BaseModel):
        return [(f".{name}", value, back.__dict__.get(name, _absent)) for name, value in sent.__dict__.items()]
    if is_dataclass(sent):
        names = [field.name for field in fields(sent)]
        return [(f".{name}", getattr(sent, name), getattr(back, name)) for name in names]
    return None


def _mark(value: Any, depth: int) -> Any:
    if depth > 50:
        return {"$unstorable": "nested too deeply"}
    if type(value) is dict and all(type(k) is str for k in value):
        return {storable_text(k): _mark(item, depth + 1) for k, item in value.items()}
    if type(value) in (list, tuple):
        return [_mark(item, depth + 1) for item in value]
    try:
        _require_plain(value, "$")
    except PayloadInvalid:
        return {"$unstorable": describe(value)}
    return value


def _small(value: Any) -> bool:
    try:
        return len(orjson.dumps(_mark(value, 0))) <= payload_bytes_max
    except (TypeError, ValueError):
        return False


def describe(value: Any) -> str:
    """A short `repr` that cannot fail and can be stored."""
    try:
        return storable_text(repr(value), 200)
    except Exception:  # a user's __repr__ may raise anything; the type's name is then all there is to say
        return f"<{type(value).__name__}>"
