"""Requests for texts: their bodies, the items of their calls, and their whole responses.

Unknown parameters are ignored. Parameters that would change the meaning of the response are refused
if the model's items have no field for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from shoal.http.openai.errors import OPEN, Body, read_body, refused
from shoal.http.openai.items import AudioMaker, ItemMaker, Params, Prompt, TextMaker, prompts_of
from shoal.http.openai.models import count_words
from shoal.http.openai.texts.messages import AnswerForms, Forms, TextAsked
from shoal.http.openai.texts.results import TextEnd, TextOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import anyio

    from shoal.http.openai.models import OpenAIModel, OpenAIModels
    from shoal.http.requests.call import EndpointCall
    from shoal.http.requests.exchange import Exchange


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
        return maker.item(prompt, params, "prompt")

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
            return maker.item(None, {**params, "messages": self._messages}, self._param)
        if self._other is not None:
            detail = "The model takes texts only: its items have no field 'messages'"
            raise refused(detail, param=self._other, code="unsupported")
        if self._prompt is None:
            self._prompt = model.prompt(self._messages, params, self._param)
        return maker.item(model.fitting(maker, self._prompt, self._param), params, self._param)

    def fields(self, model: OpenAIModel, maker: ItemMaker) -> Collection[str]:
        if "messages" in maker.fields:
            return maker.fields
        return {*maker.fields, *model.template_fields}

    def tokens(self, model: OpenAIModel) -> int:
        if self._prompt is not None:
            return model.tokens_in(self._prompt)
        return sum([model.tokens_in(_text_in(one["content"])) for one in self._messages])


class Audio(Source):
    make: ClassVar[type[ItemMaker]] = AudioMaker

    def __init__(self, content: bytes) -> None:
        self._content = content

    def item(self, model: OpenAIModel, maker: AudioMaker, params: Params, which: int) -> Any:
        return maker.item(self._content, params)


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


@dataclass(slots=True)
class TextJob:
    """One request for texts, and the data that its calls share; all protocols make it."""

    exchange: Exchange
    model: OpenAIModel
    # In the form of chats or completions; null is as if the parameter were absent.
    params: Params
    source: Source
    forms: Forms
    stops: Sequence[str] = ()
    n: int = 1  # texts for each prompt
    texts: int = 1  # in total
    turns: anyio.CapacityLimiter | None = None  # for several calls

    @property
    def streams(self) -> bool:
        return self.params.get("stream") or False

    @property
    def asked(self) -> TextAsked:
        options = self.params.get("stream_options")
        with_usage = options is not None and bool(options.get("include_usage"))
        tokens = cache(partial(self.source.tokens, self.model))
        return TextAsked(self.exchange.id, tokens, with_usage)

    def clock(self) -> Callable[[], None]:
        return self.exchange.item_clock(self.model.endpoint.name)

    def item(self, call: EndpointCall, nth: int = 0) -> tuple[Any, TextOutput]:
        model, params, source = self.model, self.params, self.source
        maker = model.maker(call.batcher, source.make)
        which, sample = divmod(nth, self.n) if nth else (0, 0)
        if not self.forms.special.isdisjoint(params):
            self._check_supported(source.fields(model, maker))
        if (
            sample and (seed := params.get("seed")) is not None
        ):  # otherwise all texts would be the same
            params = {**params, "seed": seed + sample}
        item = source.item(model, maker, params, which)
        count, most = model.count, params.get("max_tokens")
        if most is None and maker.fields:
            most = maker.limit(item)
        if count is None and not call.streams:
            count = count_words
            if "max_tokens" in maker.fields:
                most = None  # the model counts its own tokens, which are not words
        return item, TextOutput(TextEnd(self.stops, most, count), self.forms.passes)

    def _check_supported(self, fields: Collection[str]) -> None:
        """Refuses special parameters, unless the model takes them (`fields`) itself."""
        params = self.params
        for name in sorted(self.forms.special.intersection(params)):
            if name not in fields and not self.forms.changes_nothing(name, params, self.n):
                detail = f"The model does not support {name}: its items have no field {name!r}"
                raise refused(detail, param=name, code="unsupported")


MOST_STOPS: Final = 64
LONGEST_STOP: Final = 256
MOST_TOOLS: Final = 128

_IN_ORDER: Final = Field(union_mode="left_to_right")  # faster than comparing all fits
_Count = Annotated[int, Field(ge=1, le=2**31)]
# -1 is no limit.
Limit = Annotated[int, Field(ge=-1, le=2**31)]
Tools = Annotated[list[dict[str, Any]], Field(max_length=MOST_TOOLS)]


class _StreamOptions(TypedDict, total=False):
    include_usage: bool | None


@with_config(OPEN)
class _Text(Body):
    max_tokens: NotRequired[Limit | None]
    n: NotRequired[_Count | None]
    stop: NotRequired[str | list[str] | None]
    stream: NotRequired[bool | None]
    stream_options: NotRequired[_StreamOptions | None]
    temperature: NotRequired[Annotated[float, Field(ge=0, le=2)] | None]
    top_p: NotRequired[Annotated[float, Field(ge=0, le=1)] | None]
    seed: NotRequired[Annotated[int, Field(ge=-(2**63), lt=2**63)] | None]


@with_config(OPEN)
class _Completion(_Text):
    prompt: Annotated[str | list[Any], _IN_ORDER]


@with_config(OPEN)
class _Message(TypedDict):
    role: Annotated[str, Field(max_length=64)]
    content: NotRequired[Annotated[str | list[dict[str, Any]], _IN_ORDER] | None]


@with_config(OPEN)
class _Chat(_Text):
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: NotRequired[Limit | None]
    tools: NotRequired[Tools | None]
    functions: NotRequired[Tools | None]


async def read_text_request(
    models: OpenAIModels,
    most_messages: int,
    most_choices: int,
    exchange: Exchange,
    body: bytes,
    *,
    chat: bool,
) -> TextJob:
    """Raises `Refused` if the body is malformed or asks for too much."""
    params = read_body(_Chat if chat else _Completion, exchange, body)
    n: int = params.get("n") or 1
    source: Source
    if chat:
        if (most := params.get("max_completion_tokens")) is not None:
            params["max_tokens"] = most
        source = Chat(params["messages"], most_messages)
    else:
        source = Prompts(prompts_of(params["prompt"], "prompt"))
    check_limit(params)
    texts = 1 if n == 1 and source.count == 1 else _texts(n, source.count, most_choices)
    stops: Sequence[str] = ()
    if (stop := params.get("stop")) is not None:
        stops = params["stop"] = _stops(stop)
    model = models.of(params.get("model"), TextMaker)
    forms = AnswerForms(model.name, chat=chat)
    return TextJob(exchange, model, params, source, forms, stops, n, texts)


def _texts(n: int, prompts: int, most: int) -> int:
    texts = n * prompts
    if texts > most:
        param = "n" if n > 1 else "prompt"
        detail = f"An answer has {most} choices at most, and {texts} are wanted"
        raise refused(detail, param=param)
    return texts


def check_limit(params: dict[str, Any], param: str = "max_tokens") -> None:
    """Checks ``max_tokens``, of which -1 is no limit; `param` is its name for the client."""
    most = params.get("max_tokens")
    if most == 0:
        raise refused(f"{param} must be at least 1, or -1 for no limit", param=param)
    if most == -1:
        params["max_tokens"] = None


def _stops(value: str | list[str]) -> Sequence[str]:
    stops = [stop for stop in ([value] if isinstance(value, str) else value) if stop]
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        detail = f"stop must be at most {MOST_STOPS} sequences of at most {LONGEST_STOP} characters"
        raise refused(detail, param="stop")
    return stops
