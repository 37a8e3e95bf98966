"""The JSON of a task that was just created: cast from a mold, and the same to the last byte."""

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainspring.api.http import duplicate_names as duplicates
from mainspring.api.tasks import views
from mainspring.api.tasks.views import new_task_json, new_task_out
from mainspring.domain.task import Target, TaskSpec
from mainspring.store.creation import NewTask
from support.specs import mappings, specs, words

_encode = msgspec.json.Encoder().encode

_specs = specs.map(lambda spec: _encode(spec.stored()))
_times = st.integers(0, 4_000_000_000).map(float) | st.integers(0, 4 * 10**15).map(
    lambda micros: round(micros / 1e6, 6)
)
_payloads = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
).map(_encode)
_plain = st.builds(
    NewTask,
    tenant_id=st.integers(1, 9),
    id=st.uuids(),
    created=_times,
    run=_times,
    due=_times,
    expires=st.none(),
    concurrency_key=st.none(),
    concurrency_limit=st.none(),
    priority=st.integers(0, 9),
    queue=words,
    capability=words,
    name=st.none() | words,
    labels=st.none() | st.just({}),
    spec=_specs,
    payload=_payloads,
    replay_of=st.none(),
    schedule_id=st.none(),
    nominal=st.none(),
)


@st.composite
def _tasks(draw: st.DrawFn) -> NewTask:
    """Mostly plain ones, which a mold can cast; times that are the same are frequent, too."""
    task = draw(_plain)
    if draw(st.booleans()):
        task = task._replace(run=task.created)
    if draw(st.booleans()):
        task = task._replace(due=task.run)
    unusual = draw(
        st.sampled_from(["no", "no", "expires", "limit", "labels", "schedule", "replay"])
    )
    match unusual:
        case "expires":
            return task._replace(expires=draw(_times))
        case "limit":
            return task._replace(concurrency_key=draw(words), concurrency_limit=3)
        case "labels":
            return task._replace(labels=draw(mappings))
        case "schedule":
            return task._replace(schedule_id=draw(st.uuids()), nominal=draw(_times))
        case "replay":
            return task._replace(replay_of=draw(st.uuids()))
    return task


_SIMPLE = views._BLANK._replace(spec=_encode(TaskSpec(Target("handler", name="x"))))


@settings(deadline=None)
@given(_tasks())
@example(_SIMPLE._replace(expires=0.0))
@example(_SIMPLE._replace(concurrency_key="", concurrency_limit=1))
def test_a_cast_is_the_same_as_what_it_was_taken_from(task: NewTask) -> None:
    for _ in range(2):  # when the mold is made, and when it is used again
        assert new_task_json(task) == _encode(new_task_out(task))


def test_large_specs_are_not_kept() -> None:
    """A command may be as large as a request: a thousand of them would fill the memory."""
    views._template.cache_clear()
    views._shared_spec.cache_clear()
    for n in range(3):
        spec = _encode(TaskSpec(Target("command", argv=[str(n), "x" * 5000])))
        task = views._BLANK._replace(spec=spec)
        assert new_task_json(task) == _encode(new_task_out(task))
    assert views._template.cache_info().currsize == views._shared_spec.cache_info().currsize == 0


def test_only_digests_of_seen_bodies_are_kept() -> None:
    """They may have secrets in them: an http target's, a webhook's."""
    for n in range(2000):
        body = b'{"auth": {"bearer": "hush-%d"}}' % n
        duplicates.check_unique_names(body, [])
    assert 0 < len(duplicates._seen) <= 512
    assert b"hush" not in b"".join(duplicates._seen)
    assert {len(digest) for digest in duplicates._seen} == {32}
