"""Every error a user of agentrt can meet: what is so, with the values, then what to do.

`UsageError`: fix the code or the call. `StoreError`: mend the database, or wait. `JobError`: one job's fate.
`Fail` and `RetryAfter` are raised by agents, to say how an attempt ends. `LeaseLost` is a signal of the runtime and no
`Exception`: an agent's `except Exception` must not eat it.
"""

from __future__ import annotations

import math


class AgentrtError(Exception):
    """Whatever agentrt raises on purpose."""


# ------------------------------------------------------------------ the call or the code is wrong


class UsageError(AgentrtError):
    """The call cannot be right whatever the database says. Nothing was sent or changed."""


class PayloadInvalid(UsageError):
    """A value does not fit the agent's schema, or would not come back equal from the database. Nothing was sent."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class PayloadTooLarge(PayloadInvalid):
    """A value is larger than its limit once encoded. Nothing was sent."""


class AskCycle(UsageError):
    """The ask could never be answered: who holds the mailbox it goes to waits for the asker. Nothing was sent."""


class TooManyHops(UsageError):
    """The message would be further from the first of its tree than allowed; the text shows the way. Nothing was sent."""


class ConfigError(UsageError):
    """A setting (option, environment variable, database address) is wrong; the text names it and the remedy."""


# ------------------------------------------------------------------ the database


class StoreError(AgentrtError):
    """The database refused or failed; the text carries its reason."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or went away during a call.

    What the call would have written may or may not be there: repeat it only in a form that may run twice
    (every statement of agentrt is one).
    """


class StoreRefused(StoreError):
    """The database refused the values of a statement (class 22, 23 or 54 of PostgreSQL's error codes). Nothing was written."""


class StoreBusy(StoreError):
    """Somebody else's transaction holds a lock for longer than the statement may wait. Nothing was written."""


class SchemaOutdated(StoreError):
    """The tables are older or newer than this agentrt; the text says which command mends it."""


# ------------------------------------------------------------------ one job's fate


class JobError(AgentrtError):
    """Something about one job; `job_id` says which."""

    def __init__(self, job_id: int, text: str) -> None:
        super().__init__(text)
        self.job_id = job_id


class JobNotFound(JobError):
    """No such job: it never existed here, or it was pruned."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id, f"There is no job {job_id}. It never existed in this database, or it was pruned.")


class JobExpired(JobNotFound):
    """The job existed, ended, and was pruned; its result is gone."""

    def __init__(self, job_id: int) -> None:
        JobError.__init__(
            self,
            job_id,
            f"Job {job_id} has expired: it ended and was pruned after its keeping time (--keep), or the transaction that sent it"
            " was rolled back.",
        )


class JobFailed(JobError):
    """The job ended as failed. `reason` is a word (`error`, `crashed`, `timeout`, …); `error` has class and text."""

    def __init__(self, job_id: int, agent: str, reason: str, error: str) -> None:
        super().__init__(job_id, f"Job {job_id} ({agent}) failed, {reason}: {error}")
        self.agent = agent
        self.reason = reason
        self.error = error


class JobCancelled(JobError):
    """The job was cancelled before it ended."""

    def __init__(self, job_id: int, agent: str, error: str) -> None:
        super().__init__(job_id, f"Job {job_id} ({agent}) was cancelled: {error}")
        self.agent = agent


class ReplyTimeout(JobError):
    """No result in time. The job goes on."""

    def __init__(self, job_id: int, timeout_s: float) -> None:
        super().__init__(
            job_id,
            f"No result of job {job_id} within {timeout_s:g} s. It goes on: 'agentrt why {job_id}' says where it is.",
        )
        self.timeout_s = timeout_s


class DecisionExpired(AgentrtError):
    """Nobody answered in time, and the question had no default."""

    def __init__(self, question: str, within_s: float) -> None:
        super().__init__(f"Nobody answered within {within_s:g} s: {question}")
        self.question = question


class DecisionRefused(AgentrtError):
    """The answer was not taken: the text says why (already decided, expired, no such option, not yours to answer)."""


class BudgetExceeded(AgentrtError):
    """The budget of the tree is used up; the text says what was spent, of how much. The job ends as failed."""


class StepTimeout(AgentrtError, TimeoutError):
    """The step ran longer than its `timeout_s`."""


class StepFailed(AgentrtError):
    """A recorded failure whose own class cannot be rebuilt here: it carries that class's name, text and traceback."""

    traceback: str = ""


# ------------------------------------------------------------------ how an agent ends its attempt


class Fail(Exception):
    """Raised by an agent: this job cannot succeed, do not retry. `reason` is kept and shown."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RetryAfter(Exception):
    """Raised by an agent: run this job again in `seconds`. The slot is given back and no attempt is counted.

    Raises `UsageError` when `seconds` is no number (a header's text, say): a failed attempt like any other error.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        try:
            self.seconds = float(seconds)
        except (TypeError, ValueError, OverflowError):
            self.seconds = math.nan
        if math.isnan(self.seconds):
            raise UsageError(f"RetryAfter takes the wait in seconds, a number; it was given {seconds!r}.")
        super().__init__(reason or f"again in {self.seconds:g} s")
        self.reason = reason


class LeaseLost(BaseException):
    """The attempt no longer owns its job: the database refused a write, or the lease ran out. Its results are dropped."""
