"""The plans that PostgreSQL makes inside the verbs' functions, read from its own dump of them.

`debug_print_plan` is in every server (auto_explain is a library that may be missing) and shows each plan as it is made,
nested statements included, with the function and line it was made for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import asyncpg

_settings = """
select set_config('log_min_messages', 'fatal', false) where current_setting('is_superuser') = 'on'; -- here, not in its log
set client_min_messages = log;
set debug_pretty_print = off;
set debug_print_plan = on;
"""
_token = re.compile(r"[{}()]|(?:\\.|[^\s{}()\\])+", re.DOTALL)
_place = re.compile(r'function (?:"?\w+"?\.)?"?(\w+)"?\(.*\) (line \d+ at .+)')


@dataclass(slots=True)
class Node:
    """One `{NAME :field value …}` of the dump; a value is a list of words and nodes, lists flattened."""

    name: str
    fields: dict[str, list[str | Node]] = field(default_factory=dict)

    def word(self, *names: str) -> str:
        """A field's only word; its name differs between versions of the server."""
        for name in names:
            if values := self.fields.get(name):
                return str(values[0])
        return ""

    def below(self) -> Iterator[Node]:
        """This node and all in it."""
        yield self
        for values in self.fields.values():
            for value in values:
                if isinstance(value, Node):
                    yield from value.below()


@dataclass(frozen=True, slots=True)
class Scan:
    """How a table is read. `conditions`: how many the index is asked with; 0 reads it from end to end."""

    kind: str
    table: str
    index: str
    conditions: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan, the function and the place in it that it was made for, and of which scans each sort takes its rows."""

    function: str
    place: str
    scans: tuple[Scan, ...]
    sorted_scans: tuple[tuple[Scan, ...], ...]


class Plans:
    """Listens on connections; `read` hands out what was planned since the last look."""

    def __init__(self) -> None:
        self._dumps: list[tuple[str, str]] = []

    async def watch(self, connection: asyncpg.Connection) -> None:
        await connection.execute(_settings)
        connection.add_log_listener(self._heard)

    def _heard(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        if message.message == "plan:":
            self._dumps.append((str(message.context or getattr(message, "query", "")), str(message.detail or "")))

    def read(self, names: dict[str, str]) -> list[Plan]:
        """`names`: of tables and indexes, by oid."""
        dumps, self._dumps = self._dumps, []
        return [_plan(context, _parse(dump), names) for context, dump in dumps]


def _parse(dump: str) -> Node:
    tokens = iter(_token.findall(dump))
    assert next(tokens) == "{"
    return _node(tokens)


def _node(tokens: Iterator[str]) -> Node:
    """The node whose brace was just read. Words before the first field and the parentheses of lists are dropped."""
    node = Node(next(tokens))
    values: list[str | Node] = []
    for token in tokens:
        if token == "}":
            break
        if token == "{":
            values.append(_node(tokens))
        elif token.startswith(":"):
            values = node.fields[token[1:]] = []
        elif token not in ("(", ")", "<>"):
            values.append(token)
    return node


def _plan(context: str, root: Node, names: dict[str, str]) -> Plan:
    tables = [names.get(node.word("relid"), "") for node in root.fields["rtable"] if isinstance(node, Node)]
    trees = [node for part in ("planTree", "subplans") for node in root.fields[part] if isinstance(node, Node)]
    nodes = [node for tree in trees for node in tree.below()]
    sorts = [node for node in nodes if node.name in ("SORT", "INCREMENTALSORT")]
    found = _place.search(context)
    return Plan(
        found[1] if found else "",
        f"{found[1]} {found[2]}" if found else " ".join(context.split())[:80],
        tuple(_scans(nodes, tables, names)),
        tuple(tuple(_scans(sort.below(), tables, names)) for sort in sorts),
    )


def _scans(nodes: Iterator[Node] | list[Node], tables: list[str], names: dict[str, str]) -> Iterator[Scan]:
    for node in nodes:
        relation = node.word("scan.scanrelid", "scanrelid")
        if node.name.endswith("SCAN") and relation.isdigit() and (table := tables[int(relation) - 1]):
            yield Scan(node.name, table, names.get(node.word("indexid"), ""), len(node.fields.get("indexqual", [])))
