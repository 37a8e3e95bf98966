"""The metrics in the form that a scraper asks for."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from support.in_process_api import InProcessApi

PLAIN, OPEN = "text/plain", "application/openmetrics-text"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


async def test_metrics_come_in_the_form_that_is_asked_for(api: InProcessApi) -> None:
    for accept, form in (
        (None, PLAIN),
        ("*/*", PLAIN),
        ("text/*", PLAIN),
        ("text/plain, */*", PLAIN),
        ("application/json, */*;q=0.1", PLAIN),
        (f"{OPEN};q=0.3, {PLAIN}", PLAIN),
        (f"{OPEN};q=0, */*", PLAIN),
        (f"{OPEN};q=nonsense, {PLAIN};q=0.1", OPEN),
        (OPEN, OPEN),
        ("application/*", OPEN),
        (f"{OPEN}; version=1.0.0; charset=utf-8", OPEN),
        (f"{OPEN.upper()}", OPEN),
        (PROMETHEUS, OPEN),
    ):
        headers = {} if accept is None else {"Accept": accept}
        answer = await api.operator.get("/metrics", **headers)
        assert answer.status == 200, accept
        assert answer.headers["content-type"].partition(";")[0] == form, accept


async def test_plain_text_is_of_the_version_that_all_read(api: InProcessApi) -> None:
    answer = await api.operator.get("/metrics", Accept="text/plain;version=0.0.4")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_both_forms_can_be_read_and_tell_the_same(api: InProcessApi) -> None:
    await api.admin.get("/v1/tasks")
    plain = await api.operator.get("/metrics")
    open_ = await api.operator.get("/metrics", Accept=OPEN)
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert open_.headers["content-type"] == f"{OPEN}; version=1.0.0; charset=utf-8"
    assert open_.body.endswith(b"# EOF\n")
    families = {f.name for f in open_families(open_.body.decode())}  # type: ignore[no-untyped-call]
    told = {family.name for family in plain_families(plain.body.decode())}
    assert families <= told
    assert all(name.endswith("_created") for name in told - families)


@pytest.mark.parametrize("accept", ["application/json", f"{OPEN};q=0, {PLAIN};q=0.0"])
async def test_other_forms_are_refused(api: InProcessApi, accept: str) -> None:
    assert (await api.operator.get("/metrics", Accept=accept)).status == 406
