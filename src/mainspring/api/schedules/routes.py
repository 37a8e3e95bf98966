"""The paths of schedules and calendars, and what stands behind them."""

from collections.abc import Mapping

from mainspring.api.http.endpoint import Operation, TenantOperation
from mainspring.api.ports import NodePort
from mainspring.api.schedules import docs
from mainspring.api.schedules.calendars import CalendarResource
from mainspring.api.schedules.changes import ScheduleChangeResource
from mainspring.api.schedules.reading import ScheduleReading
from mainspring.api.schedules.validation import ScheduleValidator
from mainspring.api.tasks.validation import TaskValidator
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.schedules.service import ScheduleService
from mainspring.store.schedule.calendars import CalendarStore
from mainspring.store.workflow.workflows import WorkflowStore


def schedule_paths(
    config: Config,
    clock: Clock,
    ids: TaskIds,
    schedules: ScheduleService,
    calendars: CalendarStore,
    workflows: WorkflowStore,
    tasks: TaskValidator,
    node: NodePort,
) -> dict[str, Mapping[str, Operation]]:
    """Every path with its operations."""
    validator = ScheduleValidator(tasks, calendars, workflows, config.max_payload)
    reading = ScheduleReading(config, clock, schedules, validator)
    changes = ScheduleChangeResource(config, clock, ids, schedules, validator, reading, node)
    dates = CalendarResource(calendars)
    one = "/v1/schedules/{id}"
    return {
        "/v1/schedules": {
            "GET": TenantOperation("read", reading.page, docs.LIST),
            "POST": TenantOperation("write", changes.create, docs.CREATE),
        },
        "/v1/schedules/preview": {"POST": TenantOperation("read", reading.preview, docs.PREVIEW)},
        one: {
            "GET": TenantOperation("read", reading.one, docs.READ),
            "PUT": TenantOperation("write", changes.replace, docs.REPLACE),
            "PATCH": TenantOperation("write", changes.edit, docs.EDIT),
            "DELETE": TenantOperation("write", changes.delete, docs.DELETE),
        },
        f"{one}/pause": {"POST": TenantOperation("write", changes.pause, docs.PAUSE)},
        f"{one}/resume": {"POST": TenantOperation("write", changes.resume, docs.RESUME)},
        f"{one}/run": {"POST": TenantOperation("write", changes.run, docs.RUN)},
        f"{one}/backfill": {"POST": TenantOperation("write", changes.backfill, docs.BACKFILL)},
        f"{one}/upcoming": {"GET": TenantOperation("read", reading.upcoming, docs.UPCOMING)},
        f"{one}/occurrences": {
            "GET": TenantOperation("read", reading.occurrences, docs.OCCURRENCES)
        },
        "/v1/calendars": {
            "GET": TenantOperation("read", dates.page, docs.LIST_CALENDARS),
            "POST": TenantOperation("write", dates.create, docs.CREATE_CALENDAR),
        },
        "/v1/calendars/{id}": {
            "GET": TenantOperation("read", dates.one, docs.READ_CALENDAR),
            "PUT": TenantOperation("write", dates.put, docs.PUT_CALENDAR),
            "DELETE": TenantOperation("write", dates.delete, docs.DELETE_CALENDAR),
        },
    }
