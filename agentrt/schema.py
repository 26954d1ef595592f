"""Schemas: what a message and a result look like, read from the annotations of an agent's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Never, NoReturn, NotRequired, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from agentrt.errors import UsageError

Adapter = TypeAdapter[Any]
anything: Adapter = TypeAdapter(Any)


def arguments_adapter(fn: Callable[..., Any], name: str) -> Adapter:
    """The message schema of an agent: an object with one field a parameter of `fn`, by its annotations.

    Raises `UsageError` when the signature has parameters that a message cannot name.
    """
    schema_fields: dict[str, Any] = {}
    hints = _hints(fn, name)
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(
                f"Agent {name!r}: parameter {parameter} cannot be part of a message. Give each argument a name of its own."
            )
        annotation = hints.get(parameter.name, Any)
        required = parameter.default is parameter.empty
        schema_fields[parameter.name] = annotation if required else NotRequired[annotation]
    schema = TypedDict(name, schema_fields)  # type: ignore[misc]  # name and fields are known only at run time
    setattr(schema, "__pydantic_config__", {"extra": "forbid"})  # noqa: B010 - an attribute that the type cannot declare
    try:
        return TypeAdapter(schema)
    except Exception as error:  # pydantic raises several unrelated classes for a type that it cannot describe
        raise UsageError(f"Agent {name!r}: its annotations are no message schema: {first_line(error)}") from None


@lru_cache(maxsize=1024)
def result_adapter(fn: Callable[..., Any]) -> Adapter:
    """The schema of what `fn` returns; `anything` when it does not say."""
    annotation = _hints(fn, getattr(fn, "__name__", "?")).get("return", Any)
    try:
        return anything if annotation in (Any, NoReturn, Never) else TypeAdapter(annotation)
    except Exception as error:  # as above
        raise UsageError(f"{fn!r}: its return annotation is no schema: {first_line(error)}") from None


def _hints(fn: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except Exception as error:  # an annotation is user code: whatever it raises means that it cannot be read
        raise UsageError(f"{name!r}: its annotations cannot be read: {first_line(error)}") from None


_plain_schemas = frozenset(("any", "bool", "dict", "float", "int", "list", "none", "nullable", "str", "typed-dict"))


@lru_cache(maxsize=4096)
def is_plain(adapter: Adapter) -> bool:
    """Whether JSON reads back as it stands under this schema: nothing in it is made from text, chosen or converted."""

    def plain(schema: Any) -> bool:
        if schema["type"] not in _plain_schemas or "serialization" in schema:
            return False
        inner = [schema[name] for name in ("schema", "items_schema", "keys_schema", "values_schema") if name in schema]
        inner += [field["schema"] for field in schema.get("fields", {}).values()]
        return all(plain(part) for part in inner)

    return plain(adapter.core_schema)


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its class where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]
