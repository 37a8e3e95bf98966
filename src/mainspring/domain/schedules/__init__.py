"""Schedules: when something recurs, and what is decided about each occurrence."""
