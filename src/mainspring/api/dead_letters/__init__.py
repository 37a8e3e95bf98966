"""/v1/dead-letters."""
