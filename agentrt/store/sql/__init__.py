"""SQL files, found by name: each block begins with `-- name: …`, parameters are written `:name`, arrays `:name::type[]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

_block = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_parameter = re.compile(r"(?<![:\w]):([a-z_]+)")
_array_parameter = re.compile(r"(?<![:\w]):([a-z_]+)::(\w+)\[\]")
_identifier = re.compile(r"\bagentrt\.")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement with `$1 …` in place of its named parameters, which `names` lists in that order."""

    name: str
    text: str
    names: tuple[str, ...]


def in_schema(text: str, schema: str) -> str:
    """`text` with the chosen schema in place of `agentrt.`, and its name in place of 'agentrt'.

    `schema` must have passed `config.schema_name`: its characters need no escape between quotes.
    """
    return _identifier.sub(f'"{schema}".', text).replace("'agentrt'", f"'{schema}'")


def statements(file: str, schema: str) -> dict[str, Statement]:
    """All statements of a file of this folder, by name."""
    parts = _block.split((files(__package__) / file).read_text("utf-8"))
    found = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        code = "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip().rstrip(";")
        code = _array_parameter.sub(r":\1::text::\2[]", code)  # see postgres.arrays
        names = tuple(dict.fromkeys(_parameter.findall(code)))
        numbered = _parameter.sub(lambda match, names=names: f"${names.index(match[1]) + 1}", code)  # type: ignore[misc]
        found[name] = Statement(name, in_schema(numbered, schema), names)
    return found


def migrations() -> list[tuple[int, str, str]]:
    """The migrations in order: number, name, text (still with `agentrt.` for the schema)."""
    folder = files(__package__) / "migrations"
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return [(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text("utf-8")) for name in names]
