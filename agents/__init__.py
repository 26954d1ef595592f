"""The agents that ship: `agentrt run agentrt.agents` serves them, and they are agents like any user's.

They import only the public names of agentrt. Their libraries are extras, imported when a job needs them.
"""

from agentrt.agents.discord_decision import discord_decision
from agentrt.agents.discord_notify import discord_notify
from agentrt.agents.llm_task import llm_task

__all__ = ["discord_decision", "discord_notify", "llm_task"]
