"""Requests for texts, and the items of their calls.

Unknown parameters are ignored. Parameters that would change the meaning of the response are refused
if the model's items have no field for them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import Field

from shoal.http.openai.errors import refused
from shoal.http.openai.items import AudioMaker, ItemMaker, Params, Prompt, TextMaker
from shoal.http.openai.models import count_words
from shoal.http.openai.texts.results import OF_MESSAGES, TextEnd, TextOutput
from shoal.http.requests.exchange import JSON

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import anyio

    from shoal.http.openai.models import OpenAIModel
    from shoal.http.requests.call import EndpointCall
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.protocol import StreamForm


# Of all messages of a chat.
MOST_PARTS: Final = 1024


class Source(ABC):
    make: ClassVar[type[ItemMaker]] = TextMaker
    # How many texts it is for.
    count = 1

    @abstractmethod
    def item(self, model: OpenAIModel, maker: Any, params: Params, which: int) -> Any:
        """Returns the item for one of the texts; `maker` is one of `make`."""

    def fields(self, model: OpenAIModel, maker: ItemMaker) -> Collection[str]:
        return maker.fields

    def tokens(self, model: OpenAIModel) -> int:
        """Returns the number of tokens, once an item was made."""
        return 0


class Prompts(Source):
    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts = prompts
        self.count = len(prompts)

    def item(self, model: OpenAIModel, maker: TextMaker, params: Params, which: int) -> Any:
        prompt = model.fitting(maker, self._prompts[which], "prompt")
        return maker.item((prompt,), params, ("prompt",))

    def tokens(self, model: OpenAIModel) -> int:
        return sum(map(model.tokens_in, self._prompts))


class Chat(Source):
    """The messages of a chat; raises `Refused` if a part is malformed, or there are too many."""

    def __init__(
        self, messages: Sequence[dict[str, Any]], most: int, param: str = "messages"
    ) -> None:
        if (count := len(messages)) > most:
            detail = f"A chat has {most} messages at most, and there are {count}"
            raise refused(detail, param=param)
        self._messages = messages
        self._param = param  # the client's name of them
        self._prompt: str | None = None
        # Where a message has a part that is no text.
        self._other: str | None = None
        parts = 0
        for nth, message in enumerate(messages):
            content = message.get("content")
            if isinstance(content, str):
                continue
            place = f"messages.{nth}.content" if param == "messages" else param
            parts += len(content or ())
            if parts > MOST_PARTS:
                detail = f"The messages of a chat have {MOST_PARTS} parts at most"
                raise refused(detail, param=place)
            if _are_texts(content or (), place):
                message["content"] = _text_in(content)
            else:
                self._other = self._other or place

    def item(self, model: OpenAIModel, maker: TextMaker, params: Params, which: int) -> Any:
        if maker.takes_messages:
            return maker.item_of_messages(self._messages, params, self._param)
        if self._other is not None:
            detail = "The model takes texts only: its items have no field 'messages'"
            raise refused(detail, param=self._other, code="unsupported")
        if self._prompt is None:
            self._prompt = model.prompt(self._messages, params, self._param)
        prompt = model.fitting(maker, self._prompt, self._param)
        return maker.item((prompt,), params, (self._param,))

    def fields(self, model: OpenAIModel, maker: ItemMaker) -> Collection[str]:
        if "messages" in maker.fields:
            return maker.fields
        return {*maker.fields, *model.tokens.template_fields}

    def tokens(self, model: OpenAIModel) -> int:
        if self._prompt is not None:
            return model.tokens_in(self._prompt)
        return sum([model.tokens_in(_text_in(one["content"])) for one in self._messages])


class Audio(Source):
    make: ClassVar[type[ItemMaker]] = AudioMaker

    def __init__(self, content: bytes) -> None:
        self._content = content

    def item(self, model: OpenAIModel, maker: AudioMaker, params: Params, which: int) -> Any:
        return maker.item((self._content,), params, ("file",))


def _are_texts(parts: Sequence[Mapping[str, Any]], param: str) -> bool:
    """Returns whether all parts of a message are texts; others only need a type."""
    are_texts = True
    for part in parts:
        kind = part.get("type")
        if not isinstance(kind, str) or (kind == "text" and not isinstance(part.get("text"), str)):
            detail = "A part of a message has a type, and one of the type text has a text"
            raise refused(detail, param=param)
        are_texts = are_texts and kind == "text"
    return are_texts


def _text_in(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    if isinstance(content, str):
        return content
    return "".join([part["text"] for part in content or () if part["type"] == "text"])


SPECIAL: Final = frozenset(
    {
        *("tools", "tool_choice", "functions", "function_call", "logprobs", "top_logprobs"),
        *("response_format", "logit_bias", "suffix", "prediction", "echo", "best_of"),
        *("audio", "modalities", "web_search_options"),
    }
)
_CHOICES_OF: Final = {"tool_choice": "tools", "function_call": "functions"}


@dataclass(eq=False)
class TextJob(ABC):
    """One request for texts, the data that its calls share, and the forms of its response."""

    # Parameters that change the response, so that a model must take them itself.
    special: ClassVar[frozenset[str]] = SPECIAL
    # Fields of a result that its message has as well.
    passes: ClassVar[Sequence[str]] = OF_MESSAGES

    exchange: Exchange
    model: OpenAIModel
    # In the form of chats or completions; null is as if the parameter were absent.
    params: Params
    source: Source
    stops: Sequence[str] = ()
    n: int = 1  # texts for each prompt
    texts: int = 1  # in total
    turns: anyio.CapacityLimiter | None = None  # for several calls
    created: int = field(default_factory=lambda: int(time.time()), init=False)

    @cached_property
    def prompt_tokens(self) -> int:
        """The tokens of the prompt, once an item was made."""
        return self.source.tokens(self.model)

    @property
    def media_type(self) -> bytes:
        return JSON

    @property
    def streams(self) -> bool:
        return self.params.get("stream") or False

    @abstractmethod
    def form(self, output: TextOutput) -> StreamForm:
        """Returns the form of a stream with one text."""

    @abstractmethod
    def whole(self, outputs: Sequence[TextOutput]) -> bytes:
        """Returns the body of a response with whole texts."""

    def changes_nothing(self, name: str) -> bool:
        """Returns whether a response without the parameter is what the client wants."""
        value = self.params[name]
        if value is None:  # not given
            return True
        if name == "response_format":
            return bool(value == {"type": "text"})
        if name == "modalities":
            return bool(value == ["text"])
        if name in _CHOICES_OF:
            choices = self.params.get(_CHOICES_OF[name])
            return bool(value == "auto" or (value == "none" and not choices))
        if name == "best_of":
            return type(value) is int and value == self.n
        # A completion's `logprobs: 0` still asks for log probabilities.
        return value is False or value in ("", [], {}) or (name == "top_logprobs" and value == 0)

    def clock(self) -> Callable[[], None]:
        return self.exchange.item_clock(self.model.endpoint.name)

    def item(self, call: EndpointCall, nth: int = 0) -> tuple[Any, TextOutput]:
        model, params, source = self.model, self.params, self.source
        maker = model.maker(call.batcher, source.make)
        which, sample = divmod(nth, self.n) if nth else (0, 0)
        if not self.special.isdisjoint(params):
            self._check_supported(source.fields(model, maker))
        if sample and (seed := params.get("seed")) is not None:
            params = {**params, "seed": seed + sample}  # otherwise all texts would be the same
        item = source.item(model, maker, params, which)
        count, most = model.tokens.count, params.get("max_tokens")
        if most is None and maker.fields:
            most = maker.limit(item)
        if count is None and not call.batcher.streams:
            count = count_words
            if "max_tokens" in maker.fields:
                most = None  # the model counts its own tokens, which are not words
        return item, TextOutput(TextEnd(self.stops, most, count), self.passes)

    def _check_supported(self, fields: Collection[str]) -> None:
        """Refuses special parameters, unless the model takes them (`fields`) itself."""
        for name in sorted(self.special.intersection(self.params)):
            if name not in fields and not self.changes_nothing(name):
                detail = f"The model does not support {name}: its items have no field {name!r}"
                raise refused(detail, param=name, code="unsupported")


MOST_TOOLS: Final = 128
# -1 is no limit.
Limit = Annotated[int, Field(ge=-1, le=2**31)]
Tools = Annotated[list[dict[str, Any]], Field(max_length=MOST_TOOLS)]


def check_limit(params: dict[str, Any], param: str = "max_tokens") -> None:
    """Checks ``max_tokens``, of which -1 is no limit; `param` is its name for the client."""
    most = params.get("max_tokens")
    if most == 0:
        raise refused(f"{param} must be at least 1, or -1 for no limit", param=param)
    if most == -1:
        params["max_tokens"] = None
