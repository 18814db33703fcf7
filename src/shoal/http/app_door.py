"""The operator's door to an application that is opened by the server which serves the door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.http.admin import API, AdminApi
from shoal.http.asgi import split_path
from shoal.http.door import Door

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from shoal.http.app import App


class AppDoor:
    """An ASGI application: the admin API of an `App`, with the `App` behind it.

    Before the application is open, and for its lifespan, the application itself answers.

    Args:
        app: The application.
        token: What the operator must present; None for whoever can reach the door.
        allowed_modules: The modules that import paths may lead to.
        ended: Called when the operator has shut the application's controller down.

    Raises:
        TypeError: See `AdminApi`.
        ValueError: See `AdminApi`.
    """

    def __init__(
        self,
        app: App,
        *,
        token: str | None,
        allowed_modules: Sequence[str],
        ended: Callable[[], object],
    ) -> None:
        self._app = app
        self._token = token
        self._allowed_modules = allowed_modules
        self._ended = ended
        self._door: Door | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as an ASGI application."""
        door = self._door or self._open()
        if scope["type"] == "lifespan" or door is None:
            await self._app(scope, receive, send)
            return
        is_end = (
            scope["type"] == "http"
            and scope["method"] == "POST"
            and split_path(scope)[1] == f"{API}shutdown"
        )
        statuses: list[int] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        await door(scope, receive, watched if is_end else send)
        if statuses == [200]:
            self._ended()

    def _open(self) -> Door | None:
        controller: Any = self._app.controller
        if controller is not None:
            api = AdminApi(controller, token=self._token, allowed_modules=self._allowed_modules)
            self._door = Door(api, behind=self._app)
        return self._door
