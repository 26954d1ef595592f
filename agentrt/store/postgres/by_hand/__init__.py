"""The database's side of `agentrt bench`: the floors by hand with the bare driver, the schema of a run, and looks at the server.

link     one connection of a measurement
floors   what agentrt does, by hand
schema   the life of the schema that a run has for itself
looks    what the server says of a run
backlog  rows in front of which claims are timed
"""

from agentrt.store.postgres.by_hand.backlog import Backlog
from agentrt.store.postgres.by_hand.floors import ByHand, receive
from agentrt.store.postgres.by_hand.looks import Looks
from agentrt.store.postgres.by_hand.schema import RunSchema

__all__ = ["Backlog", "ByHand", "Looks", "RunSchema", "receive"]
