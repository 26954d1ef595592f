"""Failures as data: what is kept of an exception, and how it is raised again so that the same `except` clause catches it.

Nothing is pickled, and no constructor of a user's class is run: an instance is made bare, and given the arguments and
attributes that JSON can hold. A class that is not to be had here is stood in for by one of the same name, below the
nearest base that is.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from contextlib import suppress
from typing import Any, cast

from agentrt import codec
from agentrt.config import redact
from agentrt.errors import PayloadInvalid, StepFailed
from agentrt.limits import traceback_chars_max

_kept_chars_max = 2_000  # of one argument or attribute
_mark = "__agentrt_steps__"


def encode(error: BaseException) -> str:
    """The JSON text that is stored of a failure. Cannot fail, whatever the exception does when it is looked at."""
    kind = type(error)
    members = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    data = {
        "kind": class_path(kind),
        "bases": [class_path(base) for base in kind.__mro__[1:] if issubclass(base, Exception)],
        "text": text_of(error),
        "traceback": traceback_of(error),
        "args": _plain(_args(error)),
        "attributes": {name: _plain(value) for name, value in _attributes(error).items()},
        "members": [encode(member) for member in members],
        "steps": steps_of(error),  # inside the step that failed: they are run again with it
    }
    return codec.encode(data).decode()


def decode(text: str) -> Exception:
    """The exception to raise for a stored failure."""
    data = cast("dict[str, Any]", codec.parse(text))
    if data["members"]:
        return ExceptionGroup(data["args"][0], [decode(member) for member in data["members"]])
    error = _error(data)
    for step_id, final in data.get("steps", {}).items():
        mark(error, step_id, final=final)
    return error


def _error(data: dict[str, Any]) -> Exception:
    kind = _find(data["kind"])
    error = None if kind is None else _bare(kind, data)
    if error is not None and text_of(error) == data["text"]:
        return error
    return _stand_in(data, kind)


def class_path(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return codec.storable_text(name, 200)


def text_of(error: BaseException) -> str:
    """What the exception says, fit to be stored and shown; a mark when it cannot be asked."""
    try:
        return codec.storable_text(redact(str(error)))
    except BaseException:
        return "<its text cannot be read>"


def traceback_of(error: BaseException) -> str:
    """Its traceback as text; without the words of an exception that cannot be asked for them."""
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException:
        trace = "".join(traceback.format_tb(error.__traceback__))
    return codec.storable_text(redact(trace), traceback_chars_max)


def mark(error: BaseException, step_id: str, *, final: bool = False) -> None:
    """Remember on an exception which step it came out of. `final`: a repetition would only meet it again."""
    with suppress(AttributeError, TypeError):  # a class that takes no attributes: its step is not run again by a retry
        setattr(error, _mark, {**getattr(error, _mark, {}), step_id: final})


def steps_of(error: BaseException | None) -> dict[str, bool]:
    """The steps whose failures an exception carries, and whether they are final: its own, its cause's, its members'.

    Not those of its context: what an agent caught before something else went wrong is behind it.
    """
    found: dict[str, bool] = {}
    seen: set[int] = set()
    queue = [error]
    while queue:
        one = queue.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        found |= getattr(one, _mark, {})
        queue.append(one.__cause__)
        if isinstance(one, BaseExceptionGroup):
            queue += one.exceptions
    return found


def _args(error: BaseException) -> tuple[Any, ...]:
    """What its class is called with to make one like it."""
    if isinstance(error, BaseExceptionGroup):
        return (error.message,)
    if isinstance(error, OSError) and error.filename is not None and len(error.args) == 2:
        return (*error.args, error.filename)  # which the class takes out of its args
    return error.args


def _attributes(error: BaseException) -> dict[str, Any]:
    held = getattr(error, "__dict__", {})
    return {
        name: value
        for name, value in held.items()
        if isinstance(name, str) and not name.startswith("__") and _fits(value)
    }


def _plain(value: Any) -> Any:
    """The value without secrets when JSON holds it as it is; its text otherwise."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return _shown(value) if isinstance(value, str) or _fits(value) else redact(codec.describe(value))


def _shown(value: Any) -> Any:
    """A JSON value without secrets."""
    if isinstance(value, str):
        return codec.storable_text(redact(value), _kept_chars_max)
    if isinstance(value, dict):
        return {redact(name): _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value


def _fits(value: Any) -> bool:
    try:
        codec.encode(value, bytes_max=_kept_chars_max)
    except PayloadInvalid:
        return isinstance(value, str)
    except Exception:  # a user's class may do anything when it is looked at
        return False
    return True


def _find(path: str) -> type[Exception] | None:
    """The class of that path: of a module that is loaded, or can be; None when there is none."""
    parts = path.split(".")
    if len(parts) == 1:
        parts = ["builtins", *parts]
    for cut in range(len(parts) - 1, 0, -1):
        module = _module(".".join(parts[:cut]))
        if module is None:
            continue
        found: Any = module
        for name in parts[cut:]:
            found = getattr(found, name, None)
        return found if isinstance(found, type) and issubclass(found, Exception) else None
    return None


def _module(name: str) -> Any:
    if name in sys.modules:
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except BaseException:  # no such module here, or one that cannot be loaded: the stand-in then serves
        return None


def _bare(kind: type[Exception], data: dict[str, Any]) -> Exception | None:
    try:
        error = kind.__new__(kind, *data["args"])
        error.args = tuple(data["args"])
        for name, value in data["attributes"].items():
            setattr(error, name, value)
        str(error)
    except BaseException:  # it wants more than can be kept
        return None
    return error


def _stand_in(data: dict[str, Any], kind: type[Exception] | None) -> Exception:
    """An instance of a class of the same name, below the class itself when that can be derived from, else its nearest base."""
    bases = [kind, *(_find(path) for path in data["bases"])]
    namespace = {"__module__": data["kind"].rpartition(".")[0] or "builtins", "__str__": lambda self: self.args[0]}
    for base in bases:
        if base is None:
            continue
        try:
            made = type(data["kind"].rpartition(".")[2], (StepFailed, base), {**namespace, "__init__": _silent})
            error = cast("StepFailed", made.__new__(made, data["text"]))
            error.args = (data["text"],)
            for name, value in data["attributes"].items():
                with suppress(AttributeError, TypeError):  # one that its class does not let be set
                    setattr(error, name, value)
            error.traceback = data["traceback"]
        except TypeError:  # a class that cannot be combined or made bare
            continue
        return error
    error = StepFailed(data["text"])
    error.traceback = data["traceback"]
    return error


def _silent(self: Exception, *args: Any) -> None:
    """The constructor of the stand-in's base is not run."""
