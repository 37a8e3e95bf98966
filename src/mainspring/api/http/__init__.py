"""The HTTP server of the API, and what every request passes: limits, routing, keys, idempotency."""
