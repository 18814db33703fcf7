"""One request for texts: the items of its calls, and its response with whole texts."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from shoal.http.openai.text import TextEnd, count_words
from shoal.http.openai.unsupported import SPECIAL, check_supported

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from shoal.http.openai.messages import MessageForm
    from shoal.http.openai.models import Model
    from shoal.http.requests.call import EndpointCall
    from shoal.http.requests.exchange import Exchange
    from shoal.observe.metrics import ItemTimes
    from shoal.serving.backends.method_batcher import MethodBatcher


class TextJob:
    """One request for texts, and the data that its calls share."""

    # In `given`, null is as if the parameter were absent. `prompts` are empty for a chat, and
    # `messages` None for a completion. `n` texts are for each prompt, `texts` in total.

    __slots__ = (
        *("_chat_prompt", "_given", "_messages", "_n", "_prompts", "_stops", "exchange", "forms"),
        *("_turns", "model", "streams", "texts"),
    )

    def __init__(
        self,
        exchange: Exchange,
        model: Model,
        given: Mapping[str, Any],
        prompts: Sequence[str],
        messages: Sequence[Mapping[str, Any]] | None,
        stops: Sequence[str],
        n: int,
        texts: int,
    ) -> None:
        self.exchange = exchange
        self.model = model
        self.forms = model.completions if messages is None else model.chats
        self.streams: bool = given.get("stream") or False
        self.texts = texts
        self._given = given
        self._prompts = prompts
        self._messages = messages
        self._chat_prompt: str | None = None
        self._n = n
        self._stops = stops
        self._turns: anyio.CapacityLimiter | None = None

    @property
    def with_usage(self) -> bool:
        options = self._given.get("stream_options")
        return options is not None and bool(options.get("include_usage"))

    @property
    def times(self) -> ItemTimes:
        return self.exchange.item_times(self.model.endpoint.name)

    @asynccontextmanager
    async def turn(self, call: EndpointCall) -> AsyncGenerator[None]:
        """Waits before one of several calls, so that no more are made than fit into the queue."""
        if self._turns is None:
            self._turns = anyio.CapacityLimiter(call.most_at_once)
        is_first = self._turns.available_tokens > 0
        async with self._turns:
            if not is_first:
                call.wait_for_room()
            yield

    def form(self) -> MessageForm:
        return self.forms.messages(self.exchange.id)

    def whole(self, texts: Sequence[tuple[str, TextEnd]]) -> bytes:
        return self.forms.whole(self.exchange.id, texts, self.prompt_tokens())

    def prompt_tokens(self) -> int:
        """Returns the number of tokens of the prompts, once an item was made."""
        return _tokens_of(self._counted(), self.model.prompt_count)

    def _counted(self) -> Sequence[str]:
        """Returns the texts that make up the prompts."""
        if self._messages is None:
            return self._prompts
        if self._chat_prompt is not None:
            return (self._chat_prompt,)
        return [str(message["content"]) for message in self._messages]

    def item(self, call: EndpointCall, batcher: MethodBatcher, nth: int = 0) -> tuple[Any, TextEnd]:
        """Returns the item of the call for one of the texts, and the `TextEnd` of that text."""
        model, given = self.model, self._given
        maker = model.maker(batcher)
        if not SPECIAL.isdisjoint(given):
            check_supported(given, self._n, maker.fields)
        which, sample = divmod(nth, self._n) if nth else (0, 0)
        prompt: str | None
        if self._messages is None:
            prompt = self._prompts[which]
        elif maker.takes_messages:
            prompt = None
        else:
            if self._chat_prompt is None:
                self._chat_prompt = model.prompt(self._messages)
            prompt = self._chat_prompt
        if sample and (seed := given.get("seed")) is not None:  # else all would be the same text
            given = {**given, "seed": seed + sample}
        item = maker.item(prompt, given)
        count, most = model.count, given.get("max_tokens")
        if most is None and maker.fields:
            most = maker.limit(item)
        if count is None and not call.streams:
            count = count_words
            if "max_tokens" in maker.fields:
                most = None  # the model has counted its own tokens, which words are not
        return item, TextEnd(self._stops, most, count)


def _tokens_of(prompts: Sequence[str], count: Callable[[str], int]) -> int:
    if len(prompts) == 1:
        return count(prompts[0])
    return sum([count(prompt) for prompt in prompts])
