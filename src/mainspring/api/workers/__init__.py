"""/v1/leases and /v1/workers: the worker protocol, and workers as people see them."""
