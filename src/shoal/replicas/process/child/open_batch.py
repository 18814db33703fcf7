"""In the worker or the actor: the open batch that a handler gets, and the messages about it.

`OpenWork` is what `OpenBatch` needs: requests join it by messages of the parent, and what the
handler answers is gathered for the next message. That is sent before each step, whenever the
handler waits, and at the latest in the event loop's next pass. The handler waits for the parent
only where it would wait in the parent's process too: for requests, and for slow readers.
"""

from __future__ import annotations

import pickle
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.stream_buffer import wait_for_room
from shoal.core.request import DispatchReason, Draining, Request, State
from shoal.loops.parking import Bell
from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.process.wire.errors import as_data, check_may_leave
from shoal.replicas.process.wire.messages import PLAIN, Dumps, Message, pickled, sealed
from shoal.replicas.process.wire.open_batch import (
    CHUNK,
    ERROR,
    LEAVE,
    RESULT,
    WAIT,
    WAIT_END,
    NewsReader,
    OpenStart,
    unsendable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.replicas.process.wire.frames import Buffer

RUNNING: Final = State.RUNNING

_MOST_UNREPORTED: Final = 4
"""How many messages may arrive before the parent learns of it; it sends no more than 8 ahead."""

_PASS_S: Final = 0.01
"""How long other tasks wait at most for a handler of short steps."""

_MOST_STEPS: Final = 1000
"""After how many steps without an answer their numbers of requests are sent."""


class _RemoteWaiter:
    """The waiter of a request with a caller in the parent: its number, and its stream's room."""

    __slots__ = ("hold", "number", "room")

    def __init__(self, number: int, room: int) -> None:
        self.number = number
        # How many items its stream has room for.
        self.room = room
        # The number of the wait for its reader, if a task waits for it.
        self.hold: int | None = None


def _is_full(request: Request) -> bool:
    waiter: _RemoteWaiter = request.waiter
    return waiter.room <= 0


class OpenWork:
    def __init__(
        self,
        start: OpenStart,
        draining: Draining,
        send: Callable[[Message], object],
        read: Callable[[], object],
        dumps: Dumps = pickle.dumps,
    ) -> None:
        self.method = self.name = start.method
        self.streams = start.streams
        self.batch = start.as_batch(draining)
        self.joined: list[Request] = []
        self.prepare: Callable[[list[Any]], list[Any]] = list  # puts the code's defaults into items
        self._send_message = send
        # Reads the messages that have arrived, where the handler's task can.
        self._read_messages = read
        # When that task must let others run again.
        self._next_pass_at = 0.0
        self._dumps = dumps
        self._parking = parking_of_this_loop()
        self._reader = NewsReader()
        # Those that the handler did not get yet, and all that have not ended, by number.
        self._held: dict[int, Request] = {}
        self._requests: dict[int, Request] = {}
        self._is_closed = self._has_ended = False
        self._bell = Bell(self._parking)
        self._is_due = False  # whether `flush` will be called in the next pass
        self._flusher: Any = None  # `send_gathered` waits on this
        self._wait_ids = count(1)
        self._saw = self._reported = self._begun = 0
        self._steps: list[int] = []
        self._answers: list[tuple[int, int, Any]] = []
        self._buffers: list[memoryview] = []

    async def send_gathered(self) -> None:
        """Sends what has gathered in each pass, until the batch has ended."""
        # The loop's own way to call a function soon would cost a step two system calls.
        while not self._has_ended:
            if self._is_due:
                self.flush()
            self._flusher = self._parking.new_waiter()
            await self._flusher

    # What the parent sends.

    def take(self, body: Buffer, buffers: Sequence[Any]) -> None:
        news, joined, failed = self._reader.read(body, buffers, self._parking.now())
        self._saw += 1
        for number, room, request in joined:
            request.waiter = _RemoteWaiter(number, room)
            [request.item] = self.prepare([request.item])
            self._requests[number] = request
            self._held[number] = request
        for number, error in failed:
            self._answer(ERROR, number, as_data(error))
        for number in news.gone:
            if (gone := self._requests.get(number)) is not None:
                self._held.pop(number, None)  # else a busy handler would keep their items
                self._end(gone, State.CANCELLED)
        for number, more in news.room.items():
            if (read := self._requests.get(number)) is not None:
                read.waiter.room += more
        if news.closed is not None:
            self._is_closed = True
            self.batch.reason = DispatchReason(news.closed)
        if self._saw - self._reported >= _MOST_UNREPORTED:
            self._gather()
        self._bell.ring()

    # How requests join.

    def pull(self) -> None:
        if self._answers:
            self.flush()
        self._read_messages()
        self.batch.forget_ended()
        if not self._held:
            return
        self._begun = next(reversed(self._held))
        joined = [*self._held.values()]
        self._held.clear()
        self.batch.admit(joined)
        self.joined += joined

    async def wait(self) -> bool:
        if self._is_closed and not self._held:
            return False
        await self._bell.change()
        return True

    def stepped(self, *active: int) -> None:
        if any(active):
            self._steps += active

    async def pause(self) -> None:
        self.flush()
        await self._let_others_run()

    def leave(self) -> None:
        self._answer(LEAVE, 0, None)

    # How requests are answered.

    async def send(self, chunks: Sequence[tuple[Request, Any]]) -> None:
        await self._let_others_run()
        if min([request.waiter.room for request, _ in chunks], default=1) <= 0:
            requests = [request for request, _ in chunks]
            await wait_for_room(requests, _is_full, self._wait_for_readers)
        for request, chunk in chunks:
            if request.state is RUNNING:
                request.waiter.room -= 1
                self._answer_with(CHUNK, request, chunk, "an item of the stream")

    async def _let_others_run(self) -> None:
        """Executes a checkpoint, unless there was one just now and no answers wait to be sent."""
        # It takes a quarter of the time between two steps, and `pull` reads messages without it.
        if self._is_due or perf_counter() >= self._next_pass_at:
            await self._parking.checkpoint()
            self._next_pass_at = perf_counter() + _PASS_S

    def finish(self, request: Request, value: Any) -> None:
        if request.state is RUNNING and self._answer_with(RESULT, request, value, "the result"):
            self._end(request, State.FINISHED)

    def fail(self, request: Request, error: BaseException) -> None:
        if request.state is RUNNING:
            data = as_data(error, self._dumps)
            self._answer(ERROR, request.waiter.number, data)
            self._end(request, State.FAILED)

    def end(self) -> None:
        """Sends the last answers, because the handler has ended; the parent fails the others."""
        self.flush(is_last=True)
        self._has_ended = self._is_closed = True
        self._wake_flusher()
        # Tasks may outlive the handler.
        for request in [*self._requests.values()]:
            self._end(request, State.FAILED)
        self._held.clear()
        self.joined.clear()
        self.batch.members = []
        self._bell.ring()

    def flush(self, *, is_last: bool = False) -> None:
        self._is_due = False
        if self._has_ended or not (
            self._answers
            or is_last
            or self._saw - self._reported >= _MOST_UNREPORTED
            or len(self._steps) >= _MOST_STEPS
        ):
            return
        self._reported = self._saw
        # An `OpenProgress` as a plain tuple: pickling a class by its name doubles the time. All
        # values of the user's types in it were pickled before.
        progress, buffers = (self._saw, self._begun, self._steps, self._answers), self._buffers
        self._steps, self._answers, self._buffers = [], [], []
        self._send_message(pickled(progress, buffers))

    async def _wait_for_readers(self, full: list[Request]) -> None:
        wait = next(self._wait_ids)
        self._answer(WAIT, wait, [request.waiter.number for request in full])
        # At once, also to keep the order: it ends in a later message.
        self.flush()
        for request in full:
            request.waiter.hold = wait
        try:
            while any(r.state is RUNNING and _is_full(r) for r in full):
                await self._bell.change()
        finally:
            for request in full:
                request.waiter.hold = None
            # Also when there is room: if that was reported before the wait, the parent still waits.
            self._answer(WAIT_END, wait, None)

    def _answer_with(self, kind: int, request: Request, value: Any, name: str) -> bool:
        """Adds a value to the next message; fails the request if it can't be sent."""
        if type(value) in PLAIN:
            self._answer(kind, request.waiter.number, value)
            return True
        buffers = len(self._buffers)
        try:
            check_may_leave([value])
        except TypeError as error:
            self.fail(request, error)
            return False
        try:
            content = sealed(value, self._buffers, self._dumps)
        except Exception as error:
            self.fail(request, unsendable(f"{name} of {self.name}()", value, error))
            return False
        self._answer(kind, request.waiter.number, content)
        if len(self._buffers) > buffers:
            self.flush()  # the code may use the memory again
        return True

    def _answer(self, kind: int, number: int, content: Any) -> None:
        self._answers.append((kind, number, content))
        if not self._is_due:
            self._gather()

    def _gather(self) -> None:
        """Lets `flush` be called in the next pass, when more may have gathered."""
        if not (self._is_due or self._has_ended):
            self._is_due = True
            self._wake_flusher()

    def _wake_flusher(self) -> None:
        if self._flusher is not None:
            self._parking.wake(self._flusher)

    def _end(self, request: Request, state: State) -> None:
        is_begun = request.waiter.number <= self._begun
        request.state = state
        del self._requests[request.waiter.number]
        if is_begun:
            self.batch.active -= 1
