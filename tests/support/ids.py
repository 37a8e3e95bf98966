"""The time of a task's id, as the database reads it, too (`time_of` in the migrations)."""

from uuid import UUID


def time_of(task_id: UUID) -> float:
    """When an id was made, in seconds since the epoch; 0 for ids of other versions."""
    return (task_id.int >> 80) / 1000 if task_id.version == 7 else 0.0
