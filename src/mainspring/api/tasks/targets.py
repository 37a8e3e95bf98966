"""Targets: what may be called, with which headers, and how they are stored, secrets above all."""

from collections.abc import Callable, Iterator, Mapping

from mainspring.api.http.problems import below
from mainspring.domain.task import SealedHeaders, Target
from mainspring.domain.urls import url_problem
from mainspring.errors import Problem
from mainspring.execution.headers import name_problem
from mainspring.wire.tasks import CommandTarget, HandlerTarget, HttpTarget, TargetIn

Seal = Callable[[Mapping[str, str]], str]
"""The encryption of headers."""


def target_problems(target: TargetIn) -> Iterator[Problem]:
    """Yield the problems of a target, beyond those of the shapes of its fields."""
    if not isinstance(target, HttpTarget):
        return
    detail = url_problem(target.url)
    if detail:
        yield Problem("/target/url", detail)
    secret = target.secret_headers or {}
    for field, headers in (("headers", target.headers or {}), ("secret_headers", secret)):
        yield from _name_problems(f"/target/{field}", headers)
    if target.auth is not None:
        both = "authorization" in {name.lower() for name in (*secret, *(target.headers or ()))}
        if both:
            yield Problem("/target/auth", "cannot be given together with a header Authorization")


def has_secrets(target: TargetIn) -> bool:
    return isinstance(target, HttpTarget) and bool(target.auth or target.secret_headers)


def target_of(target: TargetIn, seal: Seal | None) -> Target:
    """Return the target as it is stored; without a seal its secrets are left out."""
    match target:
        case HttpTarget():
            return Target(
                "http",
                url=target.url,
                method=target.method,
                headers=target.headers or None,
                secret=_sealed_headers(target, seal) if seal and has_secrets(target) else None,
            )
        case HandlerTarget():
            return Target("handler", name=target.name)
        case CommandTarget():
            return Target("command", argv=list(target.argv))


def _sealed_headers(target: HttpTarget, seal: Seal) -> SealedHeaders:
    """Return the secret headers of a target as they are stored."""
    headers = dict(target.secret_headers or {})
    if target.auth is not None:
        headers["Authorization"] = f"Bearer {target.auth.bearer}"
    return SealedHeaders(sorted(headers), seal(headers), target.auth is not None)


def _name_problems(pointer: str, headers: Mapping[str, str]) -> Iterator[Problem]:
    seen: set[str] = set()
    for name in headers:
        detail = name_problem(name)
        if name.lower() in seen:
            detail = "is given twice"
        seen.add(name.lower())
        if detail:
            yield Problem(below(pointer, name), detail)
