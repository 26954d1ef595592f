"""The wheel: it builds, installs beside a package whose import name is `agents`, and the supervisor runs from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).parent.parent
environ = {
    name: value for name, value in os.environ.items() if name != "PYTHONPATH"
}  # it would shadow what is installed


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_the_wheel_installs_beside_openai_agents_and_runs_the_agents_that_ship(tmp_path: Path, database: str) -> None:
    run("git", "clone", "--quiet", root, tmp_path / "source", cwd=tmp_path)  # as committed: no files that lie about
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", tmp_path / "source", cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    programs = tmp_path / "env" / "bin"
    install = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet", "--no-compile")
    run(*install, "openai-agents", wheel, cwd=tmp_path)

    places = run(
        programs / "python",
        "-c",
        "import agents, agentrt.agents as a; print(agents.__file__, a.__file__)",
        cwd=tmp_path,
    )
    theirs, ours = places.split()
    assert theirs.endswith("site-packages/agents/__init__.py")
    assert ours.endswith("site-packages/agentrt/agents/__init__.py")
    assert "Usage: agentrt" in run(programs / "agentrt", "--help", cwd=tmp_path)

    supervisor = subprocess.Popen(
        [programs / "agentrt", "run", "agentrt.agents"],
        cwd=tmp_path,
        env={**environ, "AGENTRT_DATABASE_URL": database},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert supervisor.stderr is not None
        assert "supervisor.started" in supervisor.stderr.readline()
        supervisor.send_signal(signal.SIGTERM)
        assert "supervisor.stopped" in supervisor.communicate(timeout=60)[1]
        assert supervisor.returncode == 0
    finally:
        supervisor.kill()
        supervisor.wait()
