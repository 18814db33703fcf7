"""Compressed streams, in any protocol, if an option turns that on.

An answer that has a secret beside what a client chooses must not be compressed: by its length,
which anyone on the way sees, the secret can be guessed letter by letter (BREACH). So it is off by
default.

Whole answers are compressed by `Exchange.answer`. The messages of a stream are compressed here, and
flushed one by one, so that none waits for the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from shoal.http.requests.codec import StreamForm
from shoal.http.requests.content_coding import VARY, Compressor, accepted_coding

if TYPE_CHECKING:
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem

# A block without content, which may stand between any two. The server sends heartbeats by itself,
# so that their text can't go through the compressor.
_EMPTY_BLOCKS: Final = {b"gzip": b"\x00\x00\x00\xff\xff", b"zstd": b"\x00\x00\x00"}


def compressed_form(exchange: Exchange, form: StreamForm) -> StreamForm:
    """Returns a form of a stream that is compressed, if the option and the client allow that."""
    if exchange.settings.compress_from_bytes is None:
        return form
    coding = accepted_coding(exchange.headers.get(b"accept-encoding", b""))
    return form if coding is None else CompressedStream(form, coding)


class CompressedStream(StreamForm):
    """The messages of one stream, compressed.

    Args:
        form: Writes the messages.
        coding: The content coding.
    """

    def __init__(self, form: StreamForm, coding: bytes) -> None:
        self._form = form
        self._compressor = Compressor(coding)
        self.media_type = form.media_type
        self.runs_users_code = form.runs_users_code
        self.heartbeat = _EMPTY_BLOCKS[coding]
        # With a message, since zstd begins nothing without any.
        self.start = self._flushed(form.heartbeat)
        self.headers = (*form.headers, (b"content-encoding", coding), VARY)

    @override
    def first_heartbeat(self) -> bytes:
        return self._flushed(self._form.first_heartbeat())

    @override
    def item(self, value: Any) -> bytes:
        message = self._flushed(self._form.item(value))
        self.is_over = self._form.is_over
        return message

    @override
    def end(self) -> bytes:
        return self._last(self._form.end())

    @override
    def error(self, problem: Problem, request_id: str) -> bytes:
        return self._last(self._form.error(problem, request_id))

    def _flushed(self, message: bytes) -> bytes:
        return self._compressor.compress(message) + self._compressor.flush_message()

    def _last(self, message: bytes) -> bytes:
        return self._compressor.compress(message) + self._compressor.finish()
