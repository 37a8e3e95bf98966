"""Observation of a node: log lines and metrics."""
