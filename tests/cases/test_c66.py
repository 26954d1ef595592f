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
no_database = {"AGENTRT_DATABASE_URL": "postgresql://127.0.0.1:1/never-asked"}
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


async def _works(program: Program, sql: Sql, processes: int = 1) -> None:
    await program.until("supervisor.started", count=processes)
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
    await _works(start("run", module, "--processes", processes), sql, int(processes))


async def test_a_module_is_found_from_the_parent_folder_by_its_path(tmp_path: Path, sql: Sql, start: Start) -> None:
    _project(tmp_path, {"project/agents.py": _agents, "project/helper.py": "answer = 42"})
    await _works(start("run", "project/agents.py"), sql)


async def test_a_module_in_a_package_of_the_current_folder_is_found_by_its_dotted_name(
    tmp_path: Path, sql: Sql, start: Start
) -> None:
    package = {"app/__init__.py": "", "app/helper.py": "answer = 42", "app/work/__init__.py": ""}
    _project(tmp_path, {**package, "app/work/agents.py": _package})
    await _works(start("run", "app.work.agents"), sql)


def test_the_installed_command_finds_a_module_of_the_current_folder_too(tmp_path: Path) -> None:
    _project(tmp_path, {"agents.py": "1 / 0"})
    command = Path(sys.executable).parent / "agentrt"  # a console script does not put the current folder on the path
    ended = subprocess.run(
        [command, "run", "agents"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert f"{tmp_path}/agents.py, line 1: ZeroDivisionError: division by zero" in ended.stderr


_broken = {  # the files, and what is said of agents.py or helper.py: its line, the error
    "syntax": ({"agents.py": "x = 1\ndef broken(:\n    pass\n"}, "agents", "2: SyntaxError: .+"),
    "syntax deeper": ({"agents.py": "import helper\n", "helper.py": "\n\nx = (\n"}, "helper", "3: SyntaxError: .+"),
    "missing": (
        {"agents.py": "\nimport no_such_thing\n"},
        "agents",
        "2: ModuleNotFoundError: No module named 'no_such_thing'",
    ),
    "missing below itself": (
        {"agents.py": "import helper\n", "helper.py": "\n\nimport agents.missing\n"},
        "helper",
        r"3: \w+: .*agents.+",
    ),
    "no such name": (
        {"agents.py": "from helper import nothing\n", "helper.py": ""},
        "agents",
        "1: ImportError: cannot import name 'nothing'.*",
    ),
    "raises deeper": (
        {"agents.py": "import helper\n", "helper.py": "def f():\n  raise KeyError('x')\nf()"},
        "helper",
        "2: KeyError: 'x'",
    ),
    "two lines": ({"agents.py": "raise RuntimeError('first\\nsecond')\n"}, "agents", "1: RuntimeError: first.*"),
    "asserts": ({"agents.py": "assert 1 == 2\n"}, "agents", "1: AssertionError.*"),
    "exits": ({"agents.py": "import sys\nsys.exit(7)\n"}, "agents", "2: SystemExit: 7"),
    "exits as if done": ({"agents.py": "import sys\nsys.exit()\n"}, "agents", "2: SystemExit.*"),
}


@pytest.mark.parametrize(("files", "where", "said"), _broken.values(), ids=_broken)
async def test_the_users_own_error_is_shown_as_such_in_one_line_with_file_and_line(
    tmp_path: Path, files: dict[str, str], where: str, said: str
) -> None:
    _project(tmp_path, files)
    programs = {module: Program(["run", module], tmp_path, no_database) for module in ("agents", "agents.py")}
    for module, program in programs.items():
        code = await program.ended()
        (line,) = program.log().splitlines() or [f"nothing was said, exit code {code}"]
        wanted = rf"agentrt: Module '{re.escape(module)}' cannot be imported: {re.escape(str(tmp_path))}/{where}\.py, line {said}"
        assert re.fullmatch(wanted, line), line
        assert code == 2


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
async def test_a_module_that_is_not_there_or_is_none_is_said_in_one_line(
    tmp_path: Path, module: str, said: str
) -> None:
    _project(tmp_path, {"empty.py": "x = 1\n", "a folder/x.py": ""})
    program = Program(["run", module], tmp_path, no_database)
    assert await program.ended() == 2
    (line,) = program.log().splitlines()
    assert re.fullmatch(said.format(folder=re.escape(str(tmp_path))), line), line


async def test_a_file_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    _project(tmp_path, {"agents.py": "x = '\0'\n"})
    program = Program(["run", "agents"], tmp_path, no_database)
    assert await program.ended() == 2
    (line,) = program.log().splitlines()
    assert re.fullmatch(r"agentrt: Module 'agents' cannot be imported: .*SyntaxError: .+ null bytes", line), line
    assert "None" not in line
