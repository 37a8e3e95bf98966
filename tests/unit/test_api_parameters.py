"""Query parameters and cursors."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from starlette.datastructures import QueryParams

from mainspring.api.http.parameters import (
    decode_cursor,
    encode_cursor,
)
from mainspring.api.tasks.filters import outcome_query, task_query
from mainspring.errors import InvalidRequest


def test_a_cursor_comes_back_as_it_went() -> None:
    for task_id in (UUID(int=0), UUID(int=2**128 - 1), uuid4()):
        assert decode_cursor(encode_cursor(task_id)) == task_id


@pytest.mark.parametrize(
    "text", ["", "x", "ä", "' OR 1=1 --", "A" * 21, "A" * 23, "B" * 22, "AA=="]
)
def test_a_cursor_that_nobody_made_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor(text)


def test_nothing_asked_means_the_newest_fifty() -> None:
    query = task_query(QueryParams(""))
    assert (query.limit, query.before, query.payloads, query.where.labels) == (
        50,
        None,
        False,
        None,
    )


def test_all_filters_at_once() -> None:
    query = task_query(
        QueryParams(
            "state=failed&queue=q&name=n&label=a:b&label=c:d:e&due_after=2027-01-01T00:00:00+01:00"
            "&due_before=2027-01-02T00:00:00Z&limit=1000&payload=true"
        )
    )
    assert (query.where.state, query.where.queue, query.where.name) == ("failed", "q", "n")
    assert query.where.labels == {"a": "b", "c": "d:e"}
    assert query.where.due_after == datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert (query.limit, query.payloads) == (1000, True)


@pytest.mark.parametrize(
    "text",
    [
        "staet=failed",
        "state=nonsense",
        "queue=%00",
        "label=nocolon",
        "label=a:1&label=a:2",
        "due_after=2027-01-01",
        "due_after=2027-01-01T00:00:00",
        "due_before=0001-01-01T00:00:00%2B23:59",
        "limit=0",
        "limit=1001",
        "limit=١",
        "limit=-1",
        "cursor=nonsense",
        "payload=maybe",
    ],
)
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        task_query(QueryParams(text))
    assert [p.pointer for p in caught.value.problems] == ["/query/" + text.partition("=")[0]]


@pytest.mark.parametrize(
    ("time", "detail"),
    [
        ("2027-01-01T08:00Z", "like 2027-01-01T08:00:00Z"),
        ("9999-01-01T08:00:00Z", "is out of range: the year is one of 2 to 9998"),
    ],
)
def test_a_bad_time_is_explained(time: str, detail: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        task_query(QueryParams(f"due_after={time}"))
    (problem,) = caught.value.problems
    assert problem.detail.endswith(detail)


def test_outcomes() -> None:
    assert outcome_query(QueryParams("outcome=timed_out")) == "timed_out"
    assert outcome_query(QueryParams("")) is None
    with pytest.raises(InvalidRequest):
        outcome_query(QueryParams("outcome=late"))
