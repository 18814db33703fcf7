"""A request that is written to the access log when its answer has ended.

Middleware can't do that: it does not see the requests that the server answers itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from shoal.http.server.access_log import Entry
from shoal.http.server.http1.call import Call
from shoal.http.server.log_errors import contained

if TYPE_CHECKING:
    from starlette.types import Message

    from shoal.http.server.http1.carrier import Carrier
    from shoal.http.server.http1.head import HeadParser


class LoggedCall(Call):
    """One request, as `Call`; its end writes a line to the access log."""

    def __init__(self, carrier: Carrier, parser: HeadParser, body: bytes = b"") -> None:
        super().__init__(carrier, parser, body)
        self._entry = Entry()

    @override
    def put(self, data: bytes) -> None:
        """See `Call`."""
        super().put(data)
        self._entry.note_body(data)

    @override
    async def send(self, message: Message) -> None:
        """See `Call`."""
        self._entry.note(message)
        await super().send(message)

    @override
    def refuse(self, status: int, size: int) -> None:
        """See `Call`."""
        self._entry.note_answer(status, b"", size)
        super().refuse(status, size)

    @override
    def end(self) -> None:
        """See `Call`; writes the line."""
        super().end()  # which answers if the application has not
        with contained("the access log failed"):  # handlers and filters of logs are the user's
            self._write()

    def _write(self) -> None:
        line, carrier = self.line, self.carrier
        self._entry.trace_ids = self.trace_ids
        protocol = "HTTP/1.1" if line.is_http_1_1 else "HTTP/1.0"
        if carrier.shared.proxies is None:
            self._entry.write(protocol, line.method, line.path, carrier.peer)
        else:
            scope = self.scope()
            self._entry.write(protocol, line.method, scope["path"], scope["client"])
