"""The worker: leases tasks, runs handlers and commands, keeps the leases and reports."""
