"""The real program, run to its end: what it printed and its exit code."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrt.cli import main

_colour_variables = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TERM")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        return json.loads(self.out)

    def refused(self, code: int) -> str:
        """The error, after a check that it is one line and nothing else was printed."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("agentrt: "), self
        assert self.err.count("\n") == 1, self
        return self.err


class Cli:
    """Run `agentrt …` in the test's folder, on the test's database."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if name not in _colour_variables}
        self.environ = {**kept, **environ}

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "agentrt", *map(str, arguments)]

    async def __call__(self, *arguments: object, given: bytes = b"") -> Done:
        process = await asyncio.create_subprocess_exec(
            *self.command(*arguments), cwd=self.folder, env=self.environ, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        out, err = await process.communicate(given)
        assert process.returncode is not None
        assert b"Traceback" not in err, err.decode()
        return Done(process.returncode, out.decode(), err.decode())


Here = Callable[..., Done]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Run the program's entry point in this process: for the many commands that end before they do anything."""

    def run(*arguments: object, given: bytes = b"") -> Done:
        monkeypatch.setattr("sys.argv", ["agentrt", *map(str, arguments)])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Done(end.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def cli(database: str, tmp_path: Path) -> Cli:
    return Cli(tmp_path, {"AGENTRT_DATABASE_URL": database})
