"""/v1/schedules and /v1/calendars."""
