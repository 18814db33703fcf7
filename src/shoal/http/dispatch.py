"""Answering one HTTP request by its route, whatever happens."""

from __future__ import annotations

import itertools
import logging
import secrets
from typing import TYPE_CHECKING, Final

from shoal.http.asgi import ClientLeft, Exchange
from shoal.http.payload import encoded
from shoal.http.problem import PROBLEM_JSON, Refused, explained, method_not_allowed, not_found
from shoal.observe.metrics import NO_ENDPOINT, AnswerCounts

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from shoal.http.routing import Route
    from shoal.http.settings import HttpSettings

_log: Final = logging.getLogger("shoal.http")


class Dispatcher:
    """Has routes answer, turns what they raise into answers, and counts these.

    Attributes:
        answers: The answers by endpoint and status.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self.answers = AnswerCounts()
        self._settings = settings
        # Unique among the processes that one log may gather, and cheap for each request.
        self._id_prefix = secrets.token_hex(4)
        self._id_count = itertools.count(1)

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, routes: dict[str, Route] | None
    ) -> None:
        """Answers one request.

        Args:
            scope: The ASGI scope.
            receive: The ASGI callable.
            send: The ASGI callable.
            routes: What answers at the request's path, by method; None if nothing does.
        """
        exchange = Exchange(
            scope,
            receive,
            send,
            send_timeout_s=self._settings.send_timeout_s,
            fallback_id=f"{self._id_prefix}-{next(self._id_count):x}",
        )
        name = NO_ENDPOINT
        try:
            try:
                if routes is None:
                    raise Refused(not_found())
                route = routes.get(scope["method"])
                if route is None:
                    raise Refused(method_not_allowed(list(routes)))
                name = route.name
                await route.answer(exchange)
            except ClientLeft:
                raise
            except Exception as error:
                problem = explained(error, self._settings, name, exchange.request_id)
                if exchange.status:
                    raise  # too late to say it; the server breaks the connection off
                body = encoded(problem.members(exchange.request_id))
                await exchange.answer(problem.status, PROBLEM_JSON, body, problem.headers)
        except ClientLeft as left:
            _log.debug("%s: request %s: %s", name, exchange.request_id, left)
        finally:
            if exchange.status:
                self.answers.count(name, exchange.status)
