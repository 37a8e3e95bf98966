"""Use cases of schedules, each with a transaction of its own: changes, deciding what is due."""
