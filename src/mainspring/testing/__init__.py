"""For your tests: run handlers inline, move time by days, or start a whole Mainspring.

    from mainspring.testing import Trial, VirtualTime, MainspringServer

pytest finds the fixtures `mainspring_server` and `virtual_time` by itself.
"""

from mainspring.testing.inline import Ran, Trial
from mainspring.testing.server import MainspringServer
from mainspring.testing.virtual import Run, VirtualTime

__all__ = ["MainspringServer", "Ran", "Run", "Trial", "VirtualTime"]
