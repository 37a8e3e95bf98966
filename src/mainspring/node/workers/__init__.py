"""Workers at a node: leases, heartbeats and reports, also for workers that ask at other nodes."""
