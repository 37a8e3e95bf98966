"""What is stored of a spec: all that is not at its default, and enough to make it again."""

import msgspec
import pytest
from hypothesis import given

from mainspring.domain.retry import RetryPolicy
from mainspring.domain.task import Requirements, Target, TaskSpec
from support.specs import specs

_encode = msgspec.json.encode


def _decode(stored: bytes) -> TaskSpec:
    return msgspec.json.decode(stored, type=TaskSpec)


@given(specs)
def test_a_spec_comes_back_as_it_was(spec: TaskSpec) -> None:
    assert _decode(_encode(spec.stored())) == spec


@given(specs)
def test_a_spec_that_was_written_in_full_is_the_same(spec: TaskSpec) -> None:
    assert _decode(_encode(spec)) == spec


def test_defaults_take_no_room() -> None:
    spec = TaskSpec(Target("handler", name="mail"), timeout=30, retry=RetryPolicy(max_attempts=2))
    assert spec.stored() == {
        "target": {"type": "handler", "name": "mail"},
        "retry": {"max_attempts": 2},
        "timeout": 30,
    }


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        (
            b'{"target":{"type":"handler"}}',
            TaskSpec(
                Target("handler", None, None, None, None, None, None),
                timeout=30.0,
                sla=30.0,
                jitter=0.0,
                retry=RetryPolicy(5, 10.0, 3.0, 3600.0, 0.1, None),
                requires=None,
            ),
        ),
        (
            b'{"target":{"type":"handler"},"requires":{}}',
            TaskSpec(Target("handler"), requires=Requirements([], None, None)),
        ),
    ],
)
def test_what_is_left_out_keeps_its_meaning(stored: bytes, meant: TaskSpec) -> None:
    """Rows are full of it: another default needs a migration."""
    assert _decode(stored) == meant
