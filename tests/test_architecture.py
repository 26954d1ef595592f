"""The house keeps its floors: imports go down, each library has one room, nothing grows beyond what can be read at once.

The rules are those of docs/ and the module docstrings; a failure lists every place that breaks one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

root = Path(__file__).parent.parent
function_lines_max = 60
file_lines_max = 350

# A module belongs to the floor of the longest prefix that is listed. Its imports are of its own floor or a lower one.
floors = {
    "agentrt.errors": 0,
    "agentrt.limits": 0,
    "agentrt.model": 0,
    "agentrt.codec": 0,
    "agentrt.schema": 0,
    "agentrt.config": 0,
    "agentrt.store": 1,
    "agentrt.agent": 2,
    "agentrt.calls": 2,
    "agentrt.context": 2,
    "agentrt.durable": 2,
    "agentrt.client": 2,
    "agentrt.engine": 3,
    "agentrt.cli": 4,
    "agentrt.web": 4,
    "agentrt.bench": 4,
    "agentrt.testing": 4,
    "agentrt": 5,  # the door for code: the public names
    "agentrt.__main__": 5,
    "agentrt.agents": 6,  # agents are users of the public names
    "agentrt.cli.demo": 7,  # a user of all of it
}

# A library and the rooms that may import it.
rooms = {
    "asyncpg": ("agentrt.store.postgres",),
    "orjson": ("agentrt.codec",),
    "uvloop": ("agentrt.cli",),
    "click": ("agentrt.cli",),
}

# Tasks that are not of a task group, and who waits for them.
orphans = {
    ("agentrt.client", "connect.start_listening"): "cancelled and awaited where connect's block ends",
    (
        "agentrt.store.postgres.group",
        "Group._returned",
    ): "awaited where the store is closed; no caller may cancel what others share",
    ("agentrt.engine.supervisor", "Supervisor._until_idle"): "two waits for one event each, cancelled when one is over",
    ("agentrt.web.server", "listening"): "cancelled and awaited where its block ends",
    ("agentrt.testing.inside", "supervising_on"): "awaited where its block ends, and the wait for its start cancelled",
    ("agentrt.cli.run", "_run_here"): "the first task of a loop, whose end the loop runs for",
}

# How a statement begins; a text for people that quotes one begins otherwise.
_sql = re.compile(
    r"(?:\s|--[^\n]*\n)*(?:select\s(?:.+\sfrom\s|\s*\w+\()|with\s+\w+\s+as\s*\(|insert\s+into\s|update\s+\S+\s+set\s|delete\s+from\s"
    r"|(?:create|alter|drop|truncate)\s+(?:table|schema|index|function|view|database|role)\s)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    def at(self, node: ast.AST) -> str:
        return f"{self.path.relative_to(root)}:{getattr(node, 'lineno', 1)}"

    def imports(self) -> Iterator[tuple[ast.AST, str]]:
        """Every imported module with its place; `from package import name` is the module of that name if there is one."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield node, f"{base}.{alias.name}" if f"{base}.{alias.name}" in names else base

    def scopes(self) -> Iterator[tuple[str, ast.AST]]:
        """Every node with the dotted name of the function or class it is in."""

        def walk(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
            for child in ast.iter_child_nodes(node):
                yield scope, child
                named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                yield from walk(child, f"{scope}.{child.name}".lstrip(".") if named else scope)  # type: ignore[attr-defined] # named

        yield from walk(self.tree, "")


def find_modules() -> list[Module]:
    found = []
    for folder, prefix in ((root / "agentrt", "agentrt"), (root / "agents", "agentrt.agents")):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if folder.name == "agentrt" and parts[0] == "agents":
                continue  # a link to agents/
            name = ".".join([prefix, *parts]).removesuffix(".__init__")
            found.append(Module(name, path, path.read_text("utf-8")))
    return found


modules = find_modules()
names = {module.name for module in modules}


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def floor_of(name: str) -> int | None:
    fitting = [package for package in floors if package != "agentrt" and within(name, package)]
    return floors[max(fitting, key=len)] if fitting else floors.get(name)


def none(found: list[str]) -> None:
    """Fail with every place, a line each."""
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_every_module_has_a_floor() -> None:
    none([module.name for module in modules if floor_of(module.name) is None])


def test_imports_go_down_or_stay_on_their_floor() -> None:
    upward = [
        f"{module.at(node)} imports {imported}"
        for module in modules
        for node, imported in module.imports()
        if within(imported, "agentrt") and (floor_of(imported) or 0) > (floor_of(module.name) or 0)
    ]
    none(upward)


def test_each_library_is_imported_in_its_own_room_only() -> None:
    elsewhere = [
        f"{module.at(node)} imports {imported}; only {' '.join(rooms[library])} may"
        for module in modules
        for node, imported in module.imports()
        if (library := imported.partition(".")[0]) in rooms
        and not any(within(module.name, room) for room in rooms[library])
    ]
    none(elsewhere)


def test_only_the_store_knows_sql() -> None:
    found = []
    for module in modules:
        if within(module.name, "agentrt.store"):
            continue
        prose = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(module.tree):
            text = node.value if isinstance(node, ast.Constant) and id(node) not in prose else None
            if isinstance(text, str) and _sql.match(text):
                found.append(f"{module.at(node)} has SQL: {text[:60]!r}")
    none(found)


def test_only_config_sets_up_logging() -> None:
    found = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute):
                sets_up = ast.unparse(node) in (
                    "structlog.configure",
                    "structlog.configure_once",
                    "logging.basicConfig",
                )
            else:
                sets_up = isinstance(node, ast.ImportFrom) and any(a.name.startswith("configure") for a in node.names)
            if sets_up and module.name != "agentrt.config":
                found.append(module.at(node))
    none(found)


def test_agents_that_ship_use_the_public_names_only() -> None:
    (door,) = [module for module in modules if module.name == "agentrt"]
    (public,) = [
        ast.literal_eval(node.value)
        for node in door.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    ]
    found = []
    for module in modules:
        if not within(module.name, "agentrt.agents"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module == "agentrt":
                inner = [alias.name for alias in node.names if alias.name not in public]
            elif isinstance(node, ast.ImportFrom) and node.module and within(node.module, "agentrt"):
                inner = [] if within(node.module, "agentrt.agents") else [node.module]
            elif isinstance(node, ast.Import):
                inner = [
                    a.name for a in node.names if a.name.startswith("agentrt.") and not within(a.name, "agentrt.agents")
                ]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "agentrt":
                inner = [] if node.attr in public else [node.attr]
            else:
                continue
            found += [f"{module.at(node)} uses agentrt's {name}, which is no public name" for name in inner]
    none(found)


def test_functions_can_be_read_at_once() -> None:
    long = [
        f"{module.at(node)} {node.name} has {lines} lines"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > function_lines_max
    ]
    none(long)


def test_files_can_be_read_at_once() -> None:
    long = [
        f"{module.at(module.tree)} has {lines} lines"
        for module in modules
        if (lines := len(module.text.splitlines())) > file_lines_max
    ]
    none(long)


def test_every_module_opens_by_saying_what_it_is_for() -> None:
    none([module.name for module in modules if not (ast.get_docstring(module.tree) or "").strip()])


def test_every_task_has_a_parent() -> None:
    found = set()
    for module in modules:
        for scope, node in module.scopes():
            if not isinstance(node, ast.Call):
                continue
            made_by = ast.unparse(node.func)
            called = made_by.rpartition(".")[2]
            if called in ("create_task", "ensure_future") and not made_by.endswith("group.create_task"):
                found.add((module.name, scope, f"{module.at(node)} {made_by} in {scope}"))
    none([place for name, scope, place in sorted(found) if (name, scope) not in orphans])
    unused = set(orphans) - {(name, scope) for name, scope, _ in found}
    assert not unused, "exceptions that nothing needs any more"
