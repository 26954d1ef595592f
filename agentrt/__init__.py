"""agentrt: an asyncio runtime for many cooperating agents, on nothing but a database.

The public names. The house behind them, imports going down only:

    cli/ web/ bench/ testing/            the doors for people
    engine/                              supervisor → claimer, runner, committer, heart, janitor
    agent.py context.py client.py        the face: what the author of an agent or a sender touches
    store/                               the verbs on the database, all SQL in store/sql/
    model.py errors.py codec.py config.py  values, limits, errors, JSON, settings
"""

from agentrt.agent import Address, Agent, Message, agent, send_many, to
from agentrt.client import Client, Job, connect
from agentrt.context import Current, current, step
from agentrt.errors import (
    AgentrtError,
    ConfigError,
    Fail,
    JobCancelled,
    JobError,
    JobFailed,
    JobNotFound,
    LeaseLost,
    PayloadInvalid,
    PayloadTooLarge,
    ReplyTimeout,
    RetryAfter,
    SchemaOutdated,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from agentrt.model import Retry, State

__all__ = [
    "Address",
    "Agent",
    "AgentrtError",
    "Client",
    "ConfigError",
    "Current",
    "Fail",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "LeaseLost",
    "Message",
    "PayloadInvalid",
    "PayloadTooLarge",
    "ReplyTimeout",
    "Retry",
    "RetryAfter",
    "SchemaOutdated",
    "State",
    "StoreError",
    "StoreUnavailable",
    "UsageError",
    "agent",
    "connect",
    "current",
    "send_many",
    "step",
    "to",
]
