"""The messages about an open batch: what happens to it, and what its handler answers.

Each value in a message is pickled separately, unless it is plain. So an item, a result or a chunk
that can't be pickled, or can't be unpickled, fails only its own request.
"""

from __future__ import annotations

import pickle
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shoal.batching.current import running_batch
from shoal.core.request import Batch, DispatchReason, Draining, Request
from shoal.replicas.process.wire.batch import options_as_data, received_options, received_request
from shoal.replicas.process.wire.errors import ErrorAsData
from shoal.replicas.process.wire.messages import Dumps, Message, Unsealer, packed, sealed, unpickled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.batching.open_batch import OpenBatch
    from shoal.batching.open_relay import OpenNews, OpenRelay
    from shoal.replicas.process.wire.frames import Buffer, Frame


class OpenStart(NamedTuple):
    method: str
    streams: bool
    id: int
    trace: Mapping[str, str] | None

    @classmethod
    def of(cls, method: str, streams: bool, batch: OpenBatch[Any, Any]) -> OpenStart:
        running = running_batch.get(None)
        return cls(method, streams, batch.id, None if running is None else running.trace)

    def as_batch(self, draining: Draining) -> Batch:
        batch = Batch(self.id, DispatchReason.OPEN, [], draining=draining)
        batch.trace = self.trace
        return batch


class News(NamedTuple):
    """What has happened to an open batch, as it is sent."""

    # Of each request its number, its room, its item, and when it arrived.
    joined: list[tuple[int, int, Any, float]]
    options: tuple[Any, ...] | None  # `OptionsAsData` of these requests
    sent_at: float  # on the sender's clock, as all times
    gone: list[int]
    room: dict[int, int]
    closed: str | None


# The kinds of answers: plain numbers, since an enum's members take longer to pickle.
CHUNK: Final = 0
RESULT: Final = 1
ERROR: Final = 2
# The begin of a wait for the readers of some streams, its end, and that no more requests may join.
WAIT: Final = 3
WAIT_END: Final = 4
LEAVE: Final = 5


class OpenProgress(NamedTuple):
    """What a handler has done with an open batch, as it is sent."""

    # How many messages have arrived, and the number of the last request that the handler got.
    saw: int
    begun: int
    # How many requests were active in each step.
    steps: Sequence[int]
    # The kind of each answer, the number of its request or wait, and its value.
    answers: Sequence[tuple[int, int, Any]]


def packed_news(
    news: OpenNews, relay: OpenRelay, now: float, dumps: Dumps = pickle.dumps
) -> Message:
    """Packs what has happened; requests with items that can't be sent fail, and are left out."""
    buffers: list[memoryview] = []
    joined: list[tuple[int, int, Any, float]] = []
    requests: list[Request] = []
    for number, request, room in news.joined:
        try:
            item = sealed(request.item, buffers, dumps)
        except Exception as error:
            relay.fail(number, unsendable("the item", request.item, error))
        else:
            joined.append((number, room, item, request.arrived_at))
            requests.append(request)
    options = options_as_data(requests)
    return packed((joined, options, now, news.gone, news.room, news.closed), buffers)


def take_answers(frame: Frame, relay: OpenRelay, where: str) -> None:
    """Passes on what a handler has done; raises an exception for an invalid message."""
    message = OpenProgress(*unpickled(frame.body))
    unsealer = Unsealer(frame.buffers)
    relay.saw(message.saw, message.begun)
    relay.stepped(message.steps)
    for kind, number, value in message.answers:
        if kind == ERROR:
            assert isinstance(value, ErrorAsData)
            relay.fail(number, value.as_exception(where))
        elif kind == WAIT:
            relay.begin_wait(number, value)
        elif kind == WAIT_END:
            relay.end_wait(number)
        elif kind == LEAVE:
            relay.leave()
        else:
            try:
                content = unsealer.open(value)
            except Exception as error:
                text = f"the answer of {where} can't be unpickled here: {error}"
                relay.fail(number, caused(TypeError(text), error))
                continue
            take = relay.put if kind == CHUNK else relay.finish
            take(number, content)
    relay.offer()


class NewsReader:
    """Reads the messages about what happens to one open batch."""

    def __init__(self) -> None:
        self._context = Context()

    def read(
        self, body: Buffer, buffers: Sequence[Any], now: float
    ) -> tuple[News, list[tuple[int, int, Request]], list[tuple[int, Exception]]]:
        """Returns a message, its requests with their numbers and room, and the failed ones."""
        news = News(*unpickled(body))
        unsealer = Unsealer(buffers)
        requests: list[tuple[int, int, Request]] = []
        failed: list[tuple[int, Exception]] = []
        later_s = now - news.sent_at
        options = received_options(news.options, len(news.joined), later_s)
        for (number, room, value, arrived_at), one in zip(news.joined, options, strict=True):
            try:
                item = unsealer.open(value)
            except Exception as error:
                text = f"the item can't be unpickled in the process: {error}"
                failed.append((number, caused(TypeError(text), error)))
                continue
            request = received_request(item, arrived_at + later_s, one, self._context)
            requests.append((number, room, request))
        return news, requests, failed


def unsendable(name: str, value: Any, error: Exception) -> TypeError:
    text = f"{name} can't be sent between processes ({error}): {type(value).__qualname__}"
    return caused(TypeError(text), error)


def caused(error: TypeError, cause: Exception) -> TypeError:
    error.__cause__ = cause
    return error
