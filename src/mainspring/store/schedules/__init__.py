"""Schedules in the database: definitions, occurrences, calendars."""
