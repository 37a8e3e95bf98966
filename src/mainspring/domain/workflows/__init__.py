"""Workflows: graphs of steps, and the rules by which a run of one advances."""
