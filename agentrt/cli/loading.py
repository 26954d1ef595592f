"""Find the agents in modules that the user names: dotted names or files, from the current folder as Python would."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrt.agent import Agent
from agentrt.config import redact
from agentrt.errors import UsageError


def load_agents(names: Sequence[str]) -> dict[str, Agent[..., Any]]:
    """The agents of all modules by their names.

    Raises `UsageError`: a module is not found, fails as it is imported (with file and line of the user's error), declares
    no agent, or two modules declare different agents of one name.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    agents: dict[str, Agent[..., Any]] = {}
    for name in names:
        found = [value for value in vars(_import(name)).values() if isinstance(value, Agent)]
        if not found:
            raise UsageError(f"Module {name!r} declares no agent. Put @agent on a coroutine function in it.")
        for agent in found:
            if agents.setdefault(agent.name, agent) is not agent:
                raise UsageError(
                    f"Two agents are named {agent.name!r} (one in {name!r}). Rename one: @agent(name='…')."
                )
    return agents


def _import(name: str) -> ModuleType:
    try:
        if name.endswith(".py") or os.sep in name:
            return _import_file(Path(name))
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise UsageError(
                f"There is no module {name!r} (looked in {os.getcwd()} and the installed packages). Run this in the folder"
                " that holds it, or give the path of its file."
            ) from None
        raise UsageError(f"Module {name!r} cannot be imported: {_where(error)}") from None
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # the user's module is user code: whatever it raises is shown as its own
        raise UsageError(f"Module {name!r} cannot be imported: {_where(error)}") from None


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"There is no file {str(path)!r}. Give a module name, or the path of a Python file.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _where(error: BaseException) -> str:
    """The user's error in one line, with its file and line."""
    text = redact(f"{type(error).__name__}: {error}".splitlines()[0])
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}: " if error.filename else ""
        return f"{place}SyntaxError: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {text}" if len(frames) > 1 else text
