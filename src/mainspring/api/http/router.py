"""Routing: a look-up where the path is fixed, a search in few templates where it has ids."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send


class Router:
    """The resources by path template (`/v1/tasks/{id}`); fixed names go before ids.

    The search takes only templates with as many steps and the same second step as the path: with
    `/v1/tasks/…` those of tasks, whatever else there is.
    """

    def __init__(self, resources: Mapping[str, ASGIApp]) -> None:
        self._fixed = {path: app for path, app in resources.items() if "{" not in path}
        self._shaped: dict[tuple[int, str], list[_Template]] = {}
        for path, app in resources.items():
            if path not in self._fixed:
                template = _Template(path, app)
                self._shaped.setdefault(template.group, []).append(template)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._fixed.get(scope["path"]) or self._find(scope)
        if app is None:
            raise HTTPException(404, "there is nothing under this path")
        await app(scope, receive, send)

    def _find(self, scope: Scope) -> ASGIApp | None:
        steps = scope["path"].split("/")
        if len(steps) < 3:
            return None
        for template in self._shaped.get((len(steps), steps[2]), ()):
            params = template.match(steps)
            if params is not None:
                scope["path_params"] = params
                return template.app
        return None


class _Template:
    def __init__(self, path: str, app: ASGIApp) -> None:
        self.app = app
        steps = path.split("/")
        self.group = (len(steps), steps[2])
        self._fixed = [(n, step) for n, step in enumerate(steps) if not step.startswith("{")]
        self._named = [(n, step[1:-1]) for n, step in enumerate(steps) if step.startswith("{")]

    def match(self, steps: list[str]) -> dict[str, str] | None:
        """The values of the named steps; None for another path, or where a value is empty."""
        for at, step in self._fixed:
            if steps[at] != step:
                return None
        params = {name: steps[at] for at, name in self._named}
        return params if all(params.values()) else None
