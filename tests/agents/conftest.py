"""A model endpoint on loopback, with the environment of the agent `llm_task` set to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.agents.fake_llm import FakeLlm, idle_s, key


@pytest.fixture
async def llm(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeLlm]:
    async with FakeLlm() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.port}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("OPENAI_API_KEY", key)
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
        monkeypatch.setenv("AGENTRT_LLM_MODEL", "small-1")
        monkeypatch.setenv("AGENTRT_LLM_IDLE_S", str(idle_s))
        yield server
