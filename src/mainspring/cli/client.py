"""The command line's way to the API: one request at a time, with the standard library alone."""

import json
import ssl
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from mainspring.config import Config
from mainspring.errors import ConfigError, MainspringError

_PATIENCE = 30.0
_LARGEST_ANSWER = 64 * 2**20


class CallFailed(MainspringError):
    """The API said no, or nothing at all."""

    code = "call-failed"


class _NoRedirects(HTTPRedirectHandler):
    """A key is for the address the user named, and for no other."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


class ApiClient:
    """Calls the API that `url` names with the key that `api_key` holds."""

    def __init__(self, config: Config) -> None:
        if config.api_key is None:
            raise ConfigError(["api_key is not set: set MAINSPRING_API_KEY"])
        if not config.url.startswith(("http://", "https://")):
            raise ConfigError([f"url: {config.url!r} does not begin with http:// or https://"])
        self._url = config.url.rstrip("/")
        self._key = config.api_key
        context = ssl.create_default_context(cafile=config.api_ca)
        self._opener = build_opener(_NoRedirects, HTTPSHandler(context=context))

    def call(self, method: str, path: str, body: object = None, **query: Any) -> Any:
        """The answer's JSON, None for no content; CallFailed tells what the problem says."""
        given = {name: value for name, value in query.items() if value is not None}
        request = Request(
            f"{self._url}{path}{'?' + urlencode(given) if given else ''}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=_PATIENCE) as answer:
                text = answer.read(_LARGEST_ANSWER)
        except HTTPError as refused:
            with refused:
                raise CallFailed(_explain(refused.code, refused.read(_LARGEST_ANSWER))) from None
        except (URLError, OSError) as problem:
            reason = getattr(problem, "reason", problem)
            raise CallFailed(f"{self._url} cannot be reached: {reason}") from None
        return json.loads(text) if text else None

    def every(self, path: str, **query: Any) -> list[Any]:
        """All items of a list, page after page."""
        items: list[Any] = []
        cursor = None
        while True:
            page = self.call("GET", path, cursor=cursor, **query)
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return items


def part(text: str) -> str:
    """A piece of a path, whatever the user typed."""
    return quote(text, safe="")


def _explain(status: int, body: bytes) -> str:
    try:
        problem = json.loads(body)
        lines = [f"{problem['title']}: {problem['detail']}"]
        lines += [f"  {e['pointer']}: {e['detail']}" for e in problem.get("errors", ())]
    except (ValueError, KeyError, TypeError):
        return f"the server answered {status}"
    return "\n".join(lines)
