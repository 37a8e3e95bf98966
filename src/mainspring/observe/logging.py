"""Log lines: one line per event, each with an `action` that stays the same over versions.

log = structlog.get_logger()
log.warning("a lease ended", action="lease.lost", task=str(task_id))
"""

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

# Everything a reader of logs may take for the end of a line, or a terminal for a command.
_ESCAPES = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0)) if code != ord("\t")
} | {ord("\n"): "\\n", ord("\r"): "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def set_up_logging(level: str, format: str, stream: TextIO | None = None) -> None:
    """Call once at the start of the process. `format` is `console` (for people) or `json`."""
    out = stream or sys.stderr
    # It logs a traceback for each lost connection; a lost database is logged by us.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=out.isatty())
    if format == "json":
        renderer = structlog.processors.JSONRenderer(ensure_ascii=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Tracebacks without the values of variables: those may be secrets.
            structlog.processors.format_exc_info,
            name_action,
            escape_lines,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyStream(out))),
        cache_logger_on_first_use=False,
    )


class _LossyStream:
    """A stream that drops what it cannot write: a full disk, or a closed pipe, must end no work."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it was closed
            self._out.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._out.flush()


def name_action(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Every line has an action to search for, also one whose author forgot it."""
    event.setdefault("action", "unnamed")
    return event


def escape_lines(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A value with a line break in it must not look like a second line."""
    if "exception" in event:  # under its usual name the console would print it on lines of its own
        event["traceback"] = event.pop("exception")
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = value.translate(_ESCAPES)
        elif not isinstance(value, (bool, int, float, type(None))):
            event[key] = str(value).translate(_ESCAPES)
    return event
