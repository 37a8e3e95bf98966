"""/v1/tasks and /v1/effects."""
