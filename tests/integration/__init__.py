"""Mainspring with a real PostgreSQL, in this process or beside it."""
