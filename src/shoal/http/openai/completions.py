"""``/v1/completions`` and ``/v1/chat/completions``: makes the calls, and responds with their texts.

Each text is a call of its own, which joins batches as any other. A call is cancelled as soon as its
text has ended, so that it frees its slot before the next step.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import override

from shoal.batching.calls.leaving import run_unless_left
from shoal.http.openai.messages import OneText, SeveralTexts
from shoal.http.openai.models import OpenAIRoute
from shoal.http.openai.text_calls import MergedTexts, TextCall, gathered, refusing
from shoal.http.requests.call import EndpointCall, unwatched
from shoal.http.requests.endpoint import call_headers
from shoal.http.requests.exchange import JSON
from shoal.http.requests.problem import explained
from shoal.http.requests.streaming import answer_with_stream

if TYPE_CHECKING:
    from shoal.asgi.http_options import HttpOptions
    from shoal.http.openai.text_job import TextJob
    from shoal.http.openai.text_request import TextReader
    from shoal.http.requests.exchange import Exchange


class TextRoute(OpenAIRoute):
    def __init__(self, reader: TextReader, options: HttpOptions) -> None:
        super().__init__()
        self._reader = reader
        self._options = options

    @override
    async def answer(self, exchange: Exchange) -> None:
        job = self._reader.read(exchange, await exchange.body())
        exchange.counted = job.model.counted
        if job.texts > 1:
            await self._answer_with_several(exchange, job)
            return
        # A stream itself watches whether the client leaves.
        when_left = unwatched if job.streams else None
        with EndpointCall(job.model.calls, exchange, when_left) as call, refusing():
            find = partial(call.find, call_headers(exchange.headers))
            batcher = await (run_unless_left(exchange.when_left, find) if job.streams else find())
            text = TextCall(job, call, batcher, *job.item(call, batcher))
            if job.streams:
                await self._answer_with_stream(call, exchange, job, text)
                return
            if call.streams:  # the whole text of a model that streams
                whole = await run_unless_left(exchange.when_left, text.collected)
            else:
                whole = await text.collected()
            await exchange.answer(200, JSON, job.whole([(whole, text.end)]))

    async def _answer_with_stream(
        self, call: EndpointCall, exchange: Exchange, job: TextJob, text: TextCall
    ) -> None:
        form = OneText(job.form(), text.end, job.prompt_tokens, with_usage=job.with_usage)
        await answer_with_stream(
            exchange,
            text.stream(),
            form,
            call.explained,
            self._options.heartbeat_s,
            job.times,
        )

    async def _answer_with_several(self, exchange: Exchange, job: TextJob) -> None:
        if not job.streams:
            found = await run_unless_left(exchange.when_left, partial(gathered, job))
            await exchange.answer(200, JSON, job.whole(found))
            return
        form = job.form()
        with_usage = job.with_usage
        merged = MergedTexts(job, form)
        await answer_with_stream(
            exchange,
            merged,
            SeveralTexts(form, merged.ends, job.prompt_tokens, with_usage=with_usage),
            partial(
                explained,
                settings=self._options,
                endpoint=job.model.endpoint.name,
                request_id=exchange.request_id,
            ),
            self._options.heartbeat_s,
        )
