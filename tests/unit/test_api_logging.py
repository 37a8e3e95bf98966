"""Log lines stay single lines and always name an action."""

import io
import json

import pytest
import structlog

from mainspring.observe.logging import set_up_logging

pytestmark = pytest.mark.usefixtures("restored_logging")


@pytest.mark.parametrize("format", ["console", "json"])
def test_a_line_break_in_a_value_does_not_break_the_line(format: str) -> None:
    out = io.StringIO()
    set_up_logging("info", format, out)
    structlog.get_logger().info("hi\nthere", action="greet", name="a\r\nb\u2028c", many=["x\ny"])
    assert len(out.getvalue().splitlines()) == 1
    assert "\u2028" not in out.getvalue()


def test_every_line_names_an_action_and_levels_are_kept() -> None:
    out = io.StringIO()
    set_up_logging("warning", "json", out)
    log = structlog.get_logger()
    log.info("unheard", action="x")
    log.warning("heard")
    line = json.loads(out.getvalue())
    assert (line["event"], line["action"], line["level"]) == ("heard", "unnamed", "warning")


def test_a_traceback_is_one_line_without_values_of_variables() -> None:
    out = io.StringIO()
    set_up_logging("info", "console", out)
    password = "hunter" + "2"
    try:
        raise ValueError(len(password))
    except ValueError:
        structlog.get_logger().exception("failed", action="fail")
    assert len(out.getvalue().splitlines()) == 1
    assert "hunter2" not in out.getvalue()
