"""For tests of your agents, and for demos.

throwaway_database  a fresh database for one test (as a fixture for pytest: `agentrt.testing.fixtures`)
supervising         agents run in the test's own process
Clock               the database's time, moved by the test
crash_everywhere    an agent run again and again, with a crash before and after each thing that it stores
FakeDiscord         a double of the service that `discord_notify` posts to (extra `discord`)
"""

from typing import TYPE_CHECKING

from agentrt.testing.crash import crash_everywhere
from agentrt.testing.database import throwaway_database
from agentrt.testing.inside import Clock, supervising

if TYPE_CHECKING:
    from agentrt.testing.fake_discord import FakeDiscord

__all__ = ["Clock", "FakeDiscord", "crash_everywhere", "supervising", "throwaway_database"]


def __getattr__(name: str) -> object:
    """Import a double when it is asked for: its library is an extra."""
    if name == "FakeDiscord":
        from agentrt.testing.fake_discord import FakeDiscord

        return FakeDiscord
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
