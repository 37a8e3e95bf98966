"""Upkeep of the database: partitions, retention, statistics for the planner."""
