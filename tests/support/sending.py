"""A process that sends to the URLs it is given, one after another, and prints what came of each.

Only 127.0.0.1 is allowed: an allowed place beside forbidden ones, without leaving the machine.
"""

import json
import queue
import sys
from collections.abc import Sequence
from uuid import UUID

from mainspring.execution.egress_guard import EgressRules, parse_networks
from mainspring.execution.sender import ThreadSender
from mainspring.execution.transfers import SenderSettings, TransferReply, TransferRequest


def main() -> None:
    replies: queue.Queue[Sequence[TransferReply]] = queue.Queue()
    sender = ThreadSender(SenderSettings(dns_cache=0, connect_timeout=2), replies.put)
    egress = EgressRules(parse_networks("127.0.0.1/32"))
    for number, url in enumerate(sys.argv[1:]):
        sender.send([TransferRequest((UUID(int=number), 1), url, "POST", [], b"{}", 5, egress)])
        (reply,) = replies.get(timeout=10)
        print(json.dumps([reply.status, reply.trouble, reply.message]))
    sender.stop()


if __name__ == "__main__":
    main()
