"""C66, command line: the user's module in the current folder is not found, or its own error is hidden behind another."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.support import Program, Sql

pytestmark = pytest.mark.case
_agents = """
from helper import answer
from agentrt import agent
@agent
async def ask_me() -> int:
    return answer
"""
_package = """
from .. import helper
from agentrt import agent
@agent
async def ask_me() -> int:
    return helper.answer
"""


def _project(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


async def _works(program: Program, sql: Sql) -> None:
    await program.until("supervisor.started")
    job_id = await sql.value("insert into agentrt.jobs(agent) values ('ask_me') returning id")
    job = await sql.until(job_id, "succeeded")
    assert job["result"] == "42"
    assert await program.stop() == 0


@pytest.mark.parametrize("module", ["agents", "agents.py", "./agents.py"])
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_module_of_the_current_folder_is_found_with_what_it_imports(
    tmp_path: Path, sql: Sql, start: Start, module: str, processes: str
) -> None:
    _project(tmp_path, {"agents.py": _agents, "helper.py": "answer = 42"})
    await _works(start("run", module, "--processes", processes), sql)


async def test_a_module_is_found_from_the_parent_folder_by_its_path(tmp_path: Path, sql: Sql, start: Start) -> None:
    _project(tmp_path, {"project/agents.py": _agents, "project/helper.py": "answer = 42"})
    await _works(start("run", "project/agents.py"), sql)


async def test_a_module_in_a_package_of_the_current_folder_is_found_by_its_dotted_name(
    tmp_path: Path, sql: Sql, start: Start
) -> None:
    _project(tmp_path, {"app/__init__.py": "", "app/helper.py": "answer = 42", "app/work/__init__.py": "", "app/work/agents.py": _package})
    await _works(start("run", "app.work.agents"), sql)


async def test_the_installed_command_finds_a_module_of_the_current_folder_too(tmp_path: Path) -> None:
    _project(tmp_path, {"agents.py": "1 / 0"})
    command = Path(sys.executable).parent / "agentrt"  # a console script does not put the current folder on the path
    ended = subprocess.run([command, "run", "agents"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert f"{tmp_path}/agents.py, line 1: ZeroDivisionError: division by zero" in ended.stderr


@pytest.mark.parametrize("module", ["agents", "agents.py"])
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"agents.py": "x = 1\ndef broken(:\n    pass\n"}, r"{folder}/agents\.py, line 2: SyntaxError: .+"),
        ({"agents.py": "import helper\n", "helper.py": "\n\nx = (\n"}, r"{folder}/helper\.py, line 3: SyntaxError: .+"),
        ({"agents.py": "\nimport no_such_thing\n"}, r"{folder}/agents\.py, line 2: ModuleNotFoundError: No module named 'no_such_thing'"),
        ({"agents.py": "import helper\n", "helper.py": "\n\nimport agents.missing\n"}, r"{folder}/helper\.py, line 3: \w+: .*agents.+"),
        ({"agents.py": "from helper import nothing\n", "helper.py": ""}, r"{folder}/agents\.py, line 1: ImportError: cannot import name 'nothing'.*"),
        ({"agents.py": "import helper\n", "helper.py": "def f():\n    raise KeyError('color')\nf()\n"}, r"{folder}/helper\.py, line 2: KeyError: 'color'"),
        ({"agents.py": "raise RuntimeError('first\\nsecond')\n"}, r"{folder}/agents\.py, line 1: RuntimeError: first.*"),
        ({"agents.py": "import sys\nsys.exit(7)\n"}, r"{folder}/agents\.py, line 2: SystemExit: 7"),
        ({"agents.py": "assert 1 == 2\n"}, r"{folder}/agents\.py, line 1: AssertionError.*"),
        ({"agents.py": "\ufeffx = '\0'\n"}, r"{folder}/agents\.py.*: .+"),
    ],
    ids=["syntax", "syntax deeper", "missing", "missing below itself", "no such name", "raises deeper", "two lines", "exits", "asserts", "NUL"],
)
async def test_the_users_own_error_is_shown_as_such_in_one_line_with_file_and_line(
    tmp_path: Path, start: Start, module: str, files: dict[str, str], said: str
) -> None:
    _project(tmp_path, files)
    program = start("run", module)
    assert await program.ended() == 2
    (line,) = program.log().splitlines()
    wanted = rf"agentrt: Module '{re.escape(module)}' cannot be imported: {said.format(folder=re.escape(str(tmp_path)))}"
    assert re.fullmatch(wanted, line), line


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("nowhere", r"agentrt: There is no module 'nowhere' .*{folder}.*"),
        ("nowhere.py", r"agentrt: There is no file 'nowhere\.py'\. .*"),
        ("empty", r"agentrt: Module 'empty' declares no agent\. .*"),
        ("empty.nowhere", r"agentrt: There is no module 'empty\.nowhere'.*"),
        (".", r"agentrt: .+"),
        ("", r"agentrt: .+"),
        ("..empty", r"agentrt: .+"),
        ("a folder/", r"agentrt: .+"),
    ],
)
async def test_a_module_that_is_not_there_or_is_none_is_said_in_one_line(tmp_path: Path, start: Start, module: str, said: str) -> None:
    _project(tmp_path, {"empty.py": "x = 1\n", "a folder/x.py": ""})
    program = start("run", module)
    assert await program.ended() == 2
    (line,) = program.log().splitlines()
    assert re.fullmatch(said.format(folder=re.escape(str(tmp_path))), line), line
