"""agentrt: an asyncio runtime for many cooperating agents, on nothing but a database.

The public names. The house behind them, imports going down only:

    cli/ web/ bench/ testing/            the doors for people
    engine/                              supervisor → claimer, runner, committer, heart, janitor
    agent.py context.py client.py        the face: what the author of an agent or a sender touches
    durable/                             what survives a crash inside an agent: steps, waits, decisions, budgets
    store/                               the verbs on the database, all SQL in store/sql/
    model.py limits.py errors.py codec.py config.py  values, limits, errors, JSON, settings
"""

from agentrt.agent import Address, Agent, Message, agent, send_many, to
from agentrt.client import Client, Job, connect
from agentrt.context import Current, current, shield
from agentrt.durable.budget import reserve, spend
from agentrt.durable.decision import Decision, Question, decide
from agentrt.durable.key_state import state
from agentrt.durable.step import step
from agentrt.durable.transaction import transaction
from agentrt.durable.wait import sleep, wait_until
from agentrt.errors import (
    AgentrtError,
    AskCycle,
    BudgetExceeded,
    ConfigError,
    DecisionExpired,
    DecisionRefused,
    Fail,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobNotFound,
    LeaseLost,
    PayloadInvalid,
    PayloadTooLarge,
    ReplyTimeout,
    RetryAfter,
    SchemaOutdated,
    StepFailed,
    StepTimeout,
    StoreError,
    StoreUnavailable,
    TooManyHops,
    UsageError,
)
from agentrt.model import Budget, Retry, State

__all__ = [
    "Address",
    "Agent",
    "AgentrtError",
    "AskCycle",
    "Budget",
    "BudgetExceeded",
    "Client",
    "ConfigError",
    "Current",
    "Decision",
    "DecisionExpired",
    "DecisionRefused",
    "Fail",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "LeaseLost",
    "Message",
    "PayloadInvalid",
    "PayloadTooLarge",
    "Question",
    "ReplyTimeout",
    "Retry",
    "RetryAfter",
    "SchemaOutdated",
    "State",
    "StepFailed",
    "StepTimeout",
    "StoreError",
    "StoreUnavailable",
    "TooManyHops",
    "UsageError",
    "agent",
    "connect",
    "current",
    "decide",
    "reserve",
    "send_many",
    "shield",
    "sleep",
    "spend",
    "state",
    "step",
    "to",
    "transaction",
    "wait_until",
]
