"""Who calls: API keys and bearer tokens, and the scopes that each endpoint needs.

The body of a request is not read before its caller is known and allowed.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    BaseUser,
    SimpleUser,
)
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Receive, Scope, Send


def digest_of(key: str) -> str:
    """What a program keeps in place of a key. Keys must be long and random, as no password is."""
    return sha256(key.encode()).hexdigest()


@dataclass(frozen=True)
class Caller:
    """A caller that has a key.

    Attributes:
        name: Its name.
        key_digest: The `digest_of` its key.
        scopes: What it may do.
    """

    name: str
    key_digest: str
    scopes: Sequence[str]


class Keys(AuthenticationBackend):
    """Finds a caller by ``X-API-Key: KEY`` or ``Authorization: Bearer KEY``."""

    def __init__(self, callers: Sequence[Caller]) -> None:
        self._callers = callers

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        key = conn.headers.get("x-api-key")
        if key is None:
            scheme, _, key = conn.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer":
                return None
        given = digest_of(key)
        # All are compared, each in constant time, so that the time reveals nothing about the keys.
        found = [one for one in self._callers if hmac.compare_digest(given, one.key_digest)]
        if not found:
            raise AuthenticationError("the key is not known")
        return AuthCredentials(found[0].scopes), SimpleUser(found[0].name)


def refused(_: HTTPConnection, error: Exception) -> Response:
    """The answer to a caller that is not known."""
    headers = {"www-authenticate": 'Bearer realm="models"'}
    return problem(401, "Unauthorized", str(error), headers)


class Scopes:
    """Admits callers that have the scopes of an endpoint; goes inside `AuthenticationMiddleware`.

    Paths that are not listed are for nobody, so that an endpoint that was forgotten is not open.
    """

    def __init__(self, app: ASGIApp, needed: Mapping[str, Collection[str]]) -> None:
        self.app = app
        self._needed = needed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        needed = self._needed.get(scope["path"].removeprefix(scope.get("root_path", "")))
        lacking = ["*"] if needed is None else sorted({*needed} - {*scope["auth"].scopes})
        if not scope["user"].is_authenticated:
            headers = {"www-authenticate": 'Bearer realm="models"'}
            refusal = problem(401, "Unauthorized", "send a key as a bearer token", headers)
        elif lacking:
            wanted = "" if needed is None else f', scope="{" ".join(sorted(needed))}"'
            headers = {"www-authenticate": f'Bearer error="insufficient_scope"{wanted}'}
            refusal = problem(403, "Forbidden", "the caller lacks a scope", headers)
        else:
            await self.app(scope, receive, send)
            return
        await refusal(scope, receive, send)


def problem(status: int, title: str, detail: str, headers: Mapping[str, str]) -> Response:
    """An answer in the form of Shoal's own problems."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    media_type = "application/problem+json"
    return Response(json.dumps(body), status, dict(headers), media_type)
