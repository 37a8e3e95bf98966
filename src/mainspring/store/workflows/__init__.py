"""Workflows in the database: definitions, runs, steps and their tasks."""
