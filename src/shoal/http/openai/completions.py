"""``/v1/completions`` and ``/v1/chat/completions``: makes the calls, and answers with their texts.

Each text is a call of its own, which joins batches as any other. A call is cancelled as soon as its
text has ended, so that it frees its place before the next step.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from shoal.batching.calls.leaving import run_unless_left
from shoal.errors import ItemTooLarge
from shoal.http.openai.messages import NotText, OneText, SeveralTexts
from shoal.http.openai.models import BodyRoute
from shoal.http.openai.text_calls import (
    MergedTexts,
    TextCall,
    UnwatchedCaller,
    gathered,
    refusal_of,
    refusing,
)
from shoal.http.openai.text_job import answer_with_text
from shoal.http.requests.call import EndpointCall
from shoal.http.requests.compressed import compressed_form
from shoal.http.requests.endpoint import call_headers
from shoal.http.requests.exchange import JSON
from shoal.http.requests.problem import explained
from shoal.http.requests.streaming import answer_with_stream

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from shoal.batching.batcher import Batcher
    from shoal.http.openai.text_job import KeptText, TextJob
    from shoal.http.openai.text_request import TextReader
    from shoal.http.requests.exchange import Exchange
    from shoal.serving.http_options import HttpOptions


class TextRoute(BodyRoute):
    """Answers requests for texts.

    Args:
        reader: Reads the bodies.
        options: The options of the server.
    """

    def __init__(self, reader: TextReader, options: HttpOptions) -> None:
        super().__init__()
        self._reader = reader
        self._options = options

    @override
    def _begin(self, exchange: Exchange, body: bytes) -> Coroutine[Any, Any, None] | None:
        job = self._reader.read(exchange, body)
        model = job.model
        exchange.counted = model.counted
        if job.texts > 1:
            return self._answer_with_several(exchange, job)
        # The stream itself watches whether the client leaves.
        call = EndpointCall(model.calls, UnwatchedCaller(exchange) if job.streams else exchange)
        call.now = exchange.arrived_at
        try:
            batcher = call.found(call_headers(exchange.headers))
            if batcher is None:
                rest: Coroutine[Any, Any, None] | None = self._find(call, exchange, job)
            else:
                rest = self._make(call, exchange, job, batcher)
        except (ItemTooLarge, NotText) as error:
            raise refusal_of(error) from None
        except BaseException:
            with call:
                raise
        return None if rest is None else _within(call, rest)

    async def _find(self, call: EndpointCall, exchange: Exchange, job: TextJob) -> None:
        batcher = await run_unless_left(
            exchange.departure, partial(call.find, call_headers(exchange.headers))
        )
        rest = self._make(call, exchange, job, batcher)
        if rest is not None:
            await rest

    def _make(
        self, call: EndpointCall, exchange: Exchange, job: TextJob, batcher: Batcher[Any]
    ) -> Coroutine[Any, Any, None] | None:
        item, end = job.item(call, batcher)
        if job.streams or call.streams:
            text = TextCall(job, call, batcher, item, end)
            if job.streams:
                return self._answer_with_stream(call, exchange, job, text)
            return _answer_with_collected(exchange, job, text)
        if call.is_suspended(item, job.metadata):
            exchange.suspend(self, _resumed, job.kept(call, end))
            return None
        if call.has_ended:
            return answer_with_text(exchange, job.kept(call, end))
        return _wait(exchange, job, TextCall(job, call, batcher, item, end))

    async def _answer_with_stream(
        self, call: EndpointCall, exchange: Exchange, job: TextJob, text: TextCall
    ) -> None:
        form = OneText(job.form(), text.end, job.prompt_tokens, with_usage=job.with_usage)
        await answer_with_stream(
            exchange,
            text.stream(),
            compressed_form(exchange, form),
            call.explained,
            self._options.heartbeat_s,
            job.times,
        )

    async def _answer_with_several(self, exchange: Exchange, job: TextJob) -> None:
        if not job.streams:
            found = await run_unless_left(exchange.departure, partial(gathered, job))
            await exchange.answer(200, JSON, job.whole(found))
            return
        form = job.form()
        with_usage = job.with_usage
        merged = MergedTexts(job, form)
        await answer_with_stream(
            exchange,
            merged,
            compressed_form(
                exchange,
                SeveralTexts(form, merged.ends, job.prompt_tokens, with_usage=with_usage),
            ),
            partial(
                explained,
                settings=self._options,
                endpoint=job.model.endpoint.name,
                request_id=exchange.request_id,
            ),
            self._options.heartbeat_s,
        )


async def _within(call: EndpointCall, rest: Coroutine[Any, Any, None]) -> None:
    with call:
        await refusing(rest)


async def _wait(exchange: Exchange, job: TextJob, text: TextCall) -> None:
    """Makes a call with one result, and answers with it."""
    whole = await text.collected()
    await exchange.answer(200, JSON, job.whole([(whole, text.end)]))


async def _answer_with_collected(exchange: Exchange, job: TextJob, text: TextCall) -> None:
    """Answers with the whole text of a model that streams."""
    whole = await run_unless_left(exchange.departure, text.collected)
    await exchange.answer(200, JSON, job.whole([(whole, text.end)]))


def _resumed(exchange: Exchange) -> Coroutine[Any, Any, None] | None:
    """Answers a request whose call has ended meanwhile; returns what must be awaited for that."""
    kept: KeptText
    kept, exchange.kept = exchange.kept, None
    call = kept[0]
    try:
        rest = answer_with_text(exchange, kept)
    except NotText as error:
        raise refusal_of(error) from None
    except BaseException:
        with call:
            raise
    return None if rest is None else _within(call, rest)
