"""Passes an open batch on to a handler that runs elsewhere, such as in another process.

The batch stays here: requests join it as soon as it has room. They are sent to the handler's side,
which never asks for them. What happens while a message is written goes together into the next one.
This module does not know the format of the messages, or how they travel.

Flow control: the handler's side may send as many items to a stream as its buffer has room for, and
gets more room when the reader has taken some. A step that must wait for a reader reports that, so
the reader's time (``slow_reader_timeout_s``) is measured here. At most `MESSAGES_AHEAD` messages
may be unseen by the handler's side, so callers that come and leave while it is stuck use no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from shoal.batching.running.requeueing import queue_again
from shoal.batching.running.run import RUNNING
from shoal.batching.stream_buffer import offer_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

    from shoal.batching.joining import Joining
    from shoal.batching.open_batch import OpenBatch, OpenRun
    from shoal.batching.stream_buffer import StreamBuffer
    from shoal.core.request import Request

MESSAGES_AHEAD: Final = 8
"""How many messages about a batch the handler's side may not have seen yet."""


class Joined(NamedTuple):
    """A request that joins, its number, and how many items its stream has room for."""

    number: int
    request: Request
    room: int


@dataclass(slots=True)
class OpenNews:
    """What has happened to an open batch since the last message about it."""

    joined: list[Joined] = field(default_factory=list[Joined])
    # The numbers of requests with callers that have left, or that have failed here.
    gone: list[int] = field(default_factory=list[int])
    # For how many more items streams have room, by number.
    room: dict[int, int] = field(default_factory=dict[int, int])
    # Why no more requests will join; None while they may.
    closed: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.joined or self.gone or self.room or self.closed)


class _Wait:
    """A wait of the handler's side for slow readers."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


class OpenRelay:
    """The requests of an open batch whose handler runs elsewhere, by their numbers."""

    def __init__(self, batch: OpenBatch[Any, Any]) -> None:
        # Of the same package. `OpenRun` has made this batch.
        joining: Any = batch._joining  # pyright: ignore[reportPrivateUsage]
        run: Any = batch._run  # pyright: ignore[reportPrivateUsage]
        self._joining: Joining = joining
        self._run: OpenRun = run
        # The number of the last request that the handler got. Like a handler here, it answers for
        # those with which the batch began.
        self._begun = len(joining.joined)
        self._numbers = count(1)
        self._requests: dict[int, Request] = {}
        # For how many items the handler's side knows each stream to have room.
        self._room: dict[int, int] = {}
        self._to_offer: list[StreamBuffer] = []
        # Whether a stream has used half of its room, or a wait for readers has ended.
        self._reports_room = False
        self._sent = self._seen = 0
        self._has_reported_end = False
        # The waits for readers, by their numbers and by their streams.
        self._waits: dict[int, _Wait] = {}
        self._awaited: dict[int, _Wait] = {}
        self._tasks: TaskGroup

    @property
    def streams(self) -> bool:
        return self._run.streams

    def begin(self, tasks: TaskGroup, send: Callable[[OpenNews], Awaitable[None]]) -> None:
        """Starts to send what happens; `tasks` must be cancelled when the handler has ended."""
        self._tasks = tasks
        tasks.start_soon(self._send_news, send)

    async def _send_news(self, send: Callable[[OpenNews], Awaitable[None]]) -> None:
        while True:
            if self._sent - self._seen < MESSAGES_AHEAD and not (news := self._news()).is_empty:
                self._sent += 1
                rings = self._joining.bell.rings
                await send(news)
                if self._joining.bell.rings > rings:
                    continue  # while it was sent, which seldom waits
            await self._joining.bell.change()

    def _news(self) -> OpenNews:
        joining, requests = self._joining, self._requests
        news = OpenNews()
        joining.pull()
        if len(requests) > joining.batch.active - len(joining.joined):
            for number in [n for n, request in requests.items() if request.state is not RUNNING]:
                news.gone.append(number)
                self._forget(number)
        for request in joining.joined:
            # Those with which the batch began have the first numbers, also if some have left.
            number = next(self._numbers)
            if request.state is RUNNING:
                requests[number] = request
                room = 0
                if self.streams:
                    room = self._room[number] = request.waiter.capacity
                news.joined.append(Joined(number, request, room))
        joining.joined.clear()
        if self._reports_room:
            self._reports_room = False
            # Of all streams: those that began at different times share a message from then on.
            for number, room in self._room.items():
                buffer = requests[number].waiter
                more = buffer.capacity - len(buffer.items) - room
                if more > 0:
                    news.room[number] = more
                    self._room[number] = room + more
        if joining.is_closed and not self._has_reported_end:
            self._has_reported_end = True
            news.closed = joining.batch.reason.value
        return news

    def saw(self, messages: int, begun: int) -> None:
        """Records how many messages were seen, and the last request that the handler got."""
        self._begun = max(self._begun, begun)
        if not self._seen <= messages <= self._sent:
            raise ValueError(f"it saw {messages} messages of {self._sent}")
        if messages > self._seen:
            self._seen = messages
            self._joining.bell.ring()

    def put(self, number: int, chunk: Any) -> None:
        request = self._requests.get(number)
        if request is None:
            return  # its caller has left
        room = self._room[number] = self._room[number] - 1
        if room < 0:
            raise ValueError("it sent more items than a stream has room for")
        buffer: StreamBuffer = request.waiter
        # Reported once half of the buffer was used.
        if room <= buffer.capacity // 2 and not self._reports_room:
            self._reports_room = buffer.capacity - len(buffer.items) - 1 > room
            if self._reports_room:
                self._joining.bell.ring()
        if request.state is RUNNING:
            buffer.items.append(chunk)
            self._to_offer.append(buffer)

    def offer(self) -> None:
        """Offers the items of a message, after its ends: a last item is sent with its end."""
        offer_all(self._to_offer)

    def finish(self, number: int, value: Any) -> None:
        if (request := self._forget(number)) is not None:
            self._run.finish(request, value)

    def fail(self, number: int, error: BaseException) -> None:
        if (request := self._forget(number)) is not None:
            self._run.fail(request, error)

    def stepped(self, active: Sequence[int]) -> None:
        """Counts steps of the handler, with how many requests were active in each."""
        self._joining.stepped(*active)

    def leave(self) -> None:
        """Lets no more requests join, because the handler wants to end."""
        self._joining.leave()

    def begin_wait(self, wait: int, numbers: Sequence[int]) -> None:
        """Waits for the readers of streams without room, until `end_wait`; `wait` is its number."""
        waiting = {n: self._requests[n] for n in numbers if n in self._requests}
        if wait in self._waits:
            raise ValueError(f"it began the wait {wait} twice")
        # One task sends to a stream, so its earlier wait is over: it got room that was on its way.
        before = {self._awaited[n] for n in waiting if n in self._awaited}
        for one in before:
            one.scope.cancel()
        begun = self._waits[wait] = _Wait()
        self._awaited.update(dict.fromkeys(waiting, begun))
        self._tasks.start_soon(self._wait, wait, waiting, before)

    def end_wait(self, wait: int) -> None:
        if (begun := self._waits.get(wait)) is not None:
            begun.scope.cancel()

    async def _wait(self, wait: int, requests: dict[int, Request], before: set[_Wait]) -> None:
        own = self._waits[wait]
        try:
            for one in before:
                await one.ended.wait()
            with own.scope:
                await self._run.wait_for_room([*requests.values()])
        finally:
            own.ended.set()
            del self._waits[wait]
            mine = [number for number in requests if self._awaited.get(number) is own]
            for number in mine:
                del self._awaited[number]
        self._reports_room = True
        self._joining.bell.ring()

    def queue_again(self) -> None:
        batch = self._joining.batch
        never_got = [
            request
            for number, request in self._requests.items()
            if number > self._begun and request.state is RUNNING
        ]
        never_got += [request for request in self._joining.joined if request.state is RUNNING]
        if never_got:
            size = len(batch.members)
            queue_again(self._run.intake, batch, never_got)
            batch.size -= size - len(batch.members)

    def _forget(self, number: int) -> Request | None:
        self._room.pop(number, None)
        return self._requests.pop(number, None)
