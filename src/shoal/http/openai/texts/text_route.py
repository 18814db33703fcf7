"""The route of requests for texts: makes the calls, and responds with their texts.

Each text is a call of its own, which joins batches as any other. A call is cancelled as soon as its
text has ended, so that it frees its slot before the next step.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from shoal.batching.calls.leaving import run_unless_left
from shoal.errors import DeadlineExceeded, ItemTooLarge
from shoal.failures.held import holding
from shoal.http.openai.errors import refused, too_long
from shoal.http.openai.models import OpenAIRoute
from shoal.http.openai.texts.chats import ChatJob, SeveralTexts
from shoal.http.openai.texts.results import NotText, TextOutput
from shoal.http.requests.call import EndpointCall, unwatched
from shoal.http.requests.exchange import JSON, Exchange
from shoal.http.requests.streaming import ItemStream, respond_with_stream
from shoal.loops.event_loop import holds_ctrl_c

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from shoal.http.openai.texts.text_job import TextJob
    from shoal.http.requests.problem import Refused

    Sender = Callable[[Any], Awaitable[None]]
    ReadJob = Callable[[Exchange, bytes], Awaitable[TextJob]]

_HOLDING: Final = holding()


@dataclass(slots=True)
class TextCall:
    job: TextJob
    call: EndpointCall
    item: Any
    output: TextOutput

    def stream(self) -> ItemStream:
        """Returns the stream of its pieces; of one piece if the model does not stream."""
        if self.call.batcher.streams:
            return self.call.stream(self.item)
        # A task of its own makes the call, since heartbeats interrupt a task that waits for items.
        return TaskStream(1, self._send_result)

    async def _send_result(self, _nth: int, send: Sender) -> None:
        await send(self.output.whole(await self.call.result(self.item)))

    async def collected(self) -> TextOutput:
        if not self.call.batcher.streams:
            self.output.keep(self.output.whole(await self.call.result(self.item)))
            return self.output
        limit_s = self.job.exchange.options.answer_timeout_s
        if self.call.batcher.batcher.options.request_timeout_s is not None:
            limit_s = None  # the call has a deadline
        with anyio.move_on_after(limit_s):
            await self._read()
            return self.output
        raise DeadlineExceeded(f"the text was not complete after {limit_s} s")

    async def _read(self) -> None:
        output = self.output
        texts, end = output.texts, output.end
        stream = self.call.stream(self.item)
        tick = self.job.clock()

        def take(piece: Any) -> bool:
            """Takes a piece in the handler's task, which saves a switch to this one."""
            if type(piece) is not str:
                return False
            texts.append(end.take(piece))
            tick()
            if end.reason is not None:
                stream.leave()
            return True

        async with stream:
            if not end.counts:
                stream.pass_on(take)
            async for piece in stream:
                for one in (piece, *stream.ready()):
                    if end.reason is None:
                        output.keep(output.take(one))
                        tick()
                if end.reason is not None:
                    break
        texts.append(output.rest())


def _refusal_of(error: ItemTooLarge | NotText) -> Refused:
    """Returns the error for a client that can fix its request."""
    if isinstance(error, ItemTooLarge):
        return too_long("The prompt", error)
    return refused("The model gives no texts, perhaps embeddings", param="model")


@asynccontextmanager
async def _one_of_several(job: TextJob, nth: int) -> AsyncGenerator[TextCall]:
    """Makes one of several calls, once they fit into the queue."""
    call = await job.model.calls.call_for(job.exchange, when_left=unwatched)
    text = TextCall(job, call, *job.item(call, nth))
    if job.turns is None:
        job.turns = anyio.CapacityLimiter(call.most_at_once)
    is_first = job.turns.available_tokens > 0
    async with job.turns:
        if not is_first:
            call.wait_for_room()
        try:
            yield text
        except (ItemTooLarge, NotText) as error:
            raise _refusal_of(error) from None


class TaskStream:
    """The items that several tasks send, in their order of arrival."""

    def __init__(self, count: int, run: Callable[[int, Sender], Awaitable[None]]) -> None:
        self._count = self._running = count
        self._run_one = run
        self._failure: Exception | None = None  # of the first task that failed

    async def __aenter__(self) -> Self:
        # A task waits once the client has not taken enough of the others' items.
        self._send, self._items = anyio.create_memory_object_stream[Any](self._count)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        for nth in range(self._count):
            self._tasks.start_soon(self._run, nth)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._send.close()
            self._items.close()
            # The traceback of a failure, read or not, holds this object.
            del self._send, self._items, self._failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        with suppress(anyio.EndOfStream):
            return await self._items.receive()
        if self._failure is None:
            raise StopAsyncIteration
        try:
            raise self._failure
        finally:
            self._failure = None  # its traceback holds this frame

    def ready(self) -> list[Any]:
        items: list[Any] = []
        with suppress(anyio.WouldBlock, anyio.EndOfStream):
            while True:
                items.append(self._items.receive_nowait())
        return items

    @holds_ctrl_c
    async def _run(self, nth: int) -> None:
        try:
            with _HOLDING:  # it runs user code, such as validators of items
                await self._run_one(nth, self._send.send)
            self._running -= 1
        except Exception as error:
            if self._failure is None:
                self._failure = error
            self._running = 0
        if not self._running:
            self._send.close()


async def _gathered(job: TextJob) -> list[TextOutput]:
    texts: dict[int, TextOutput] = {}

    async def run(nth: int, _send: Sender) -> None:
        async with _one_of_several(job, nth) as text:
            texts[nth] = await text.collected()

    async with TaskStream(job.texts, run) as ends:
        async for _ in ends:
            pass  # it raises the first failure
    return [texts[nth] for nth in range(job.texts)]


async def _send_text(job: TextJob, form: SeveralTexts, nth: int, send: Sender) -> None:
    async with _one_of_several(job, nth) as text:
        end, stream = text.output.end, text.stream()
        messages = form.begin(nth, text.output)
        tick = job.clock()
        async with stream:
            async for piece in stream:
                message = messages.piece(piece)
                tick()
                if end.reason is not None:
                    break  # the call ends first
                if message:
                    await send(message)
            else:
                message = messages.ended()
        if message:
            await send(message)


class TextRoute(OpenAIRoute):
    def __init__(self, read: ReadJob) -> None:
        super().__init__()
        self._read = read

    async def handle(self, exchange: Exchange) -> None:
        job = await self._read(exchange, await exchange.body())
        exchange.count_under(job.model.calls)
        if job.texts > 1:
            await self._respond_with_several(exchange, job)
            return
        try:
            call = await job.model.calls.call_for(exchange)
            text = TextCall(job, call, *job.item(call))
            if job.streams:
                call.when_left = unwatched  # the stream watches for a disconnect itself
                form = job.form(text.output)
                await respond_with_stream(exchange, text.stream(), form, job.clock())
                return
            if call.batcher.streams:  # the whole text of a model that streams
                whole = await run_unless_left(exchange.when_left, text.collected)
            else:
                whole = await text.collected()
            await exchange.respond(200, job.media_type, job.whole([whole]))
        except (ItemTooLarge, NotText) as error:
            raise _refusal_of(error) from None

    async def _respond_with_several(self, exchange: Exchange, job: TextJob) -> None:
        if not job.streams:
            texts = await run_unless_left(exchange.when_left, partial(_gathered, job))
            await exchange.respond(200, JSON, job.whole(texts))
            return
        assert isinstance(job, ChatJob)  # other protocols have one text
        form = SeveralTexts(job)
        merged = TaskStream(job.texts, partial(_send_text, job, form))
        await respond_with_stream(exchange, merged, form)
