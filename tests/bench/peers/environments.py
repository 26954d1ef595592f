"""The virtual environments: one a peer, made on first use, with the newest releases that pip finds."""

from __future__ import annotations

import asyncio
import importlib.metadata
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

install_s_max = 600.0


class NotMeasured(Exception):
    """Why there is no number; the run goes on with the others."""


@dataclass(frozen=True, slots=True)
class Library:
    """What to install, and the distribution whose version is said. `python`: the least version its newest release takes."""

    distribution: str
    requirements: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)


# uvloop where the library is of asyncio and lets the caller choose the loop; psycopg in the compiled form its makers recommend.
libraries = {
    "agentrt": Library("agentrt"),  # the environment and the checkout that run the comparison
    "pgqueuer": Library("pgqueuer", ("pgqueuer[asyncpg]", "uvloop")),
    "procrastinate": Library("procrastinate", ("procrastinate", "psycopg[binary,pool]", "uvloop")),
    "oban": Library("oban", ("oban",), python=(3, 12)),
    "dbos": Library("dbos", ("dbos", "psycopg[binary]", "uvloop")),
    "chancy": Library("chancy", ("chancy", "psycopg[binary,pool]", "uvloop")),
    "saq": Library("saq", ("saq[postgres]", "psycopg[binary,pool]", "uvloop")),
    "pgtask": Library("pgtask", ("pgtask", "uvloop")),
    "pythonpq": Library("python-pq", ("python-pq",), python=(3, 13)),
    "awa": Library("awa-pg", ("awa-pg", "uvloop")),
    "absurd": Library("absurd-sdk", ("absurd-sdk", "absurdctl", "psycopg[binary]", "uvloop")),
    "baseline": Library("asyncpg"),  # the environment that runs the comparison has it
}


async def prepare(name: str, folder: Path, say: Callable[[str], None]) -> tuple[Path, str]:
    """The Python of a peer's environment and the version of its library. Raises `NotMeasured`."""
    library = libraries[name]
    if not library.requirements:
        return Path(sys.executable), importlib.metadata.version(library.distribution)
    home = folder / name
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        say(f"{name}: pip install {' '.join(library.requirements)}")
        shutil.rmtree(home, ignore_errors=True)
        await _run(await _interpreter(library.python), "-m", "venv", str(home))
        await _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *library.requirements)
        (home / "complete").touch()
    code = f"import importlib.metadata; print(importlib.metadata.version('{library.distribution}'))"
    return python, (await _run(python, "-c", code)).strip()


def last_line(said: bytes) -> str:
    """What a program said last, which is the error."""
    lines = said.decode(errors="replace").split("\n")
    return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "it said nothing")


async def _interpreter(least: tuple[int, int]) -> Path:
    """The running Python if it is new enough, else the next one that is installed. Raises `NotMeasured`."""
    if sys.version_info[:2] >= least:
        return Path(sys.executable)
    for minor in range(least[1], least[1] + 5):
        found = shutil.which(f"python3.{minor}")
        if found is not None:
            try:
                await _run(Path(found), "-m", "venv", "--help")
            except NotMeasured:  # a shim without an interpreter behind it
                continue
            return Path(found)
    raise NotMeasured(f"needs Python {least[0]}.{least[1]}, and there is none on the PATH")


async def _run(program: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )  # fmt: skip
    try:
        async with asyncio.timeout(install_s_max):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise NotMeasured(f"{' '.join(arguments[:4])} took more than {install_s_max:g} s") from None
    if process.returncode != 0:
        raise NotMeasured(f"{' '.join(arguments[:4])}: {last_line(errors)}")
    return output.decode()
