"""For tests and demos: doubles of the services that agents talk to, a small real model, the demo itself.

`FakeDiscord` is in `agentrt.testing.fake_discord` (it needs the extra `discord`).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrt.testing.fake_discord import FakeDiscord

__all__ = ["FakeDiscord"]


def __getattr__(name: str) -> object:
    """Import a double when it is asked for: its library is an extra."""
    if name == "FakeDiscord":
        from agentrt.testing.fake_discord import FakeDiscord

        return FakeDiscord
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
