"""The HTTP API: a folder per resource, and what every request passes in http/."""
