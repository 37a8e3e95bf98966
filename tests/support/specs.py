"""Specs of all kinds, for properties of what is made of them."""

from hypothesis import strategies as st

from mainspring.domain.retry import RetryPolicy
from mainspring.domain.task import Requirements, SealedHeaders, Target, TaskSpec

words = st.text(st.characters(codec="utf-8"), max_size=20)
mappings = st.dictionaries(words, words, max_size=3)
_seconds = st.floats(0, 1e6) | st.integers(0, 100).map(float)
_targets = st.one_of(
    st.builds(Target, st.just("handler"), name=words),
    st.builds(Target, st.just("command"), argv=st.lists(words, max_size=3)),
    st.builds(
        Target,
        st.just("http"),
        url=words,
        method=st.sampled_from(["GET", "POST"]),
        headers=st.none() | mappings,
        secret=st.none()
        | st.builds(
            SealedHeaders, names=st.lists(words, max_size=2), bearer=st.booleans(), sealed=words
        ),
    ),
)
specs = st.builds(
    TaskSpec,
    _targets,
    timeout=_seconds,
    sla=_seconds,
    jitter=_seconds,
    retry=st.builds(RetryPolicy, st.integers(1, 9), on=st.none() | st.just([503, "timeout"])),
    requires=st.none() | st.builds(Requirements, tags=st.lists(words, max_size=2)),
)
