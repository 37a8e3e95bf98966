"""The ledger of occurrences, held against what it must say."""

from dataclasses import dataclass
from uuid import UUID

from support.evidence import Evidence

_GAPS = """
SELECT schedule_id, nominal_at, expected FROM (
    SELECT schedule_id, nominal_at, interval '1 second'
        + lag(to_at) OVER (PARTITION BY schedule_id ORDER BY nominal_at) AS expected
    FROM occurrences WHERE pass = 0
) lines
WHERE expected IS NOT NULL AND nominal_at <> expected
"""
_WRONG_COUNTS = """
SELECT schedule_id, nominal_at, to_at, count FROM occurrences
WHERE count <> extract(epoch FROM to_at - nominal_at) + 1
"""
_BEHIND = """
SELECT s.id FROM schedules s
LEFT JOIN (SELECT schedule_id, max(to_at) AS last FROM occurrences GROUP BY schedule_id) o
    ON o.schedule_id = s.id
WHERE o.last IS DISTINCT FROM date_trunc('second', s.decided_to)
"""
_TASKS = """
WITH every AS (
    SELECT id, schedule_id, nominal_at FROM tasks
    UNION ALL SELECT id, schedule_id, nominal_at FROM task_history
)
SELECT coalesce(o.task_id, t.id) AS id, o.nominal_at AS in_ledger, t.nominal_at AS in_task
FROM (SELECT * FROM occurrences WHERE decision = 'fired') o
FULL JOIN every t ON t.id = o.task_id
WHERE o.task_id IS NULL OR t.id IS NULL OR o.schedule_id <> t.schedule_id
   OR o.nominal_at <> t.nominal_at
"""
_TWICE = """
SELECT schedule_id, nominal_at, count(*) FROM (
    SELECT schedule_id, nominal_at FROM tasks
    UNION ALL SELECT schedule_id, nominal_at FROM task_history
) every GROUP BY 1, 2 HAVING count(*) > 1
"""


@dataclass(frozen=True)
class Ledger:
    """What the database says about schedules that fire every second."""

    evidence: Evidence

    async def decided(self) -> int:
        """How many occurrences have been decided on so far."""
        found = await self.evidence.value("SELECT coalesce(sum(count), 0) FROM occurrences")
        return int(str(found))

    async def ends(self) -> dict[str, int]:
        """Up to which second each schedule is decided, by its own word."""
        rows = await self.evidence.rows(
            "SELECT id, floor(extract(epoch FROM decided_to))::bigint AS last FROM schedules"
        )
        return {str(row["id"]): row["last"] for row in rows}

    async def seconds(self, schedule: str) -> list[int]:
        """Every second that the lines of a schedule speak of, as often as they do."""
        rows = await self.evidence.rows(
            "SELECT extract(epoch FROM second)::bigint AS second FROM occurrences,"
            " generate_series(nominal_at, to_at, interval '1 second') AS second"
            " WHERE schedule_id = $1 AND pass = 0 ORDER BY 1",
            UUID(schedule),
        )
        return [row["second"] for row in rows]

    async def sound(self) -> None:
        """Each second of each schedule is decided once, none is missing, and what was fired has
        its one task."""
        for what, query in {
            "a gap, or a second decided twice": _GAPS,
            "a range that counts wrongly": _WRONG_COUNTS,
            "a ledger that ends before the schedule's word": _BEHIND,
            "a task without its line, or a line without its task": _TASKS,
            "two tasks for one time": _TWICE,
        }.items():
            rows = await self.evidence.rows(query)
            assert not rows, f"{what}: {[dict(row) for row in rows[:3]]} and {len(rows)} in all"
