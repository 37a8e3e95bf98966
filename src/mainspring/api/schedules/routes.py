"""The paths of schedules and calendars, and what stands behind them."""

from collections.abc import Mapping

from mainspring.api.http.resource import ForTenants, Operation
from mainspring.api.ports import NodePort
from mainspring.api.schedules import docs
from mainspring.api.schedules.calendars import CalendarResource
from mainspring.api.schedules.changes import ScheduleChanges
from mainspring.api.schedules.reading import ScheduleReading
from mainspring.api.schedules.validation import ScheduleValidator
from mainspring.api.tasks.validation import TaskValidator
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.schedules.service import Schedules
from mainspring.store.calendars import Calendars
from mainspring.store.workflows import Workflows


def schedule_paths(
    config: Config,
    clock: Clock,
    ids: TaskIds,
    schedules: Schedules,
    calendars: Calendars,
    workflows: Workflows,
    tasks: TaskValidator,
    node: NodePort,
) -> dict[str, Mapping[str, Operation]]:
    """Every path with its operations."""
    validator = ScheduleValidator(tasks, calendars, workflows, config.max_payload)
    reading = ScheduleReading(config, clock, schedules, validator)
    changes = ScheduleChanges(config, clock, ids, schedules, validator, reading, node)
    dates = CalendarResource(calendars)
    one = "/v1/schedules/{id}"
    return {
        "/v1/schedules": {
            "GET": ForTenants("read", reading.page, docs.LIST),
            "POST": ForTenants("write", changes.create, docs.CREATE),
        },
        "/v1/schedules/preview": {"POST": ForTenants("read", reading.preview, docs.PREVIEW)},
        one: {
            "GET": ForTenants("read", reading.one, docs.READ),
            "PUT": ForTenants("write", changes.replace, docs.REPLACE),
            "PATCH": ForTenants("write", changes.edit, docs.EDIT),
            "DELETE": ForTenants("write", changes.delete, docs.DELETE),
        },
        f"{one}/pause": {"POST": ForTenants("write", changes.pause, docs.PAUSE)},
        f"{one}/resume": {"POST": ForTenants("write", changes.resume, docs.RESUME)},
        f"{one}/run": {"POST": ForTenants("write", changes.run, docs.RUN)},
        f"{one}/backfill": {"POST": ForTenants("write", changes.backfill, docs.BACKFILL)},
        f"{one}/upcoming": {"GET": ForTenants("read", reading.upcoming, docs.UPCOMING)},
        f"{one}/occurrences": {"GET": ForTenants("read", reading.occurrences, docs.OCCURRENCES)},
        "/v1/calendars": {
            "GET": ForTenants("read", dates.page, docs.LIST_CALENDARS),
            "POST": ForTenants("write", dates.create, docs.CREATE_CALENDAR),
        },
        "/v1/calendars/{id}": {
            "GET": ForTenants("read", dates.one, docs.READ_CALENDAR),
            "PUT": ForTenants("write", dates.put, docs.PUT_CALENDAR),
            "DELETE": ForTenants("write", dates.delete, docs.DELETE_CALENDAR),
        },
    }
