"""Requests for texts: their bodies, the items of their calls, and their whole responses.

Unknown parameters are ignored. Parameters that would change the meaning of the response, and that
are not supported here, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from shoal.http.json.validation import JsonType, adapter_of
from shoal.http.openai.errors import of_invalid_item, refused
from shoal.http.openai.text import TextEnd, count_words
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import anyio

    from shoal.http.openai.messages import AnswerForms, MessageForm
    from shoal.http.openai.models import Models, OpenAIModel
    from shoal.http.requests.call import EndpointCall
    from shoal.http.requests.exchange import Exchange
    from shoal.observe.metrics import ItemTimes
    from shoal.serving.backends.method_batcher import MethodBatcher

# Parameters that no model can support, since the responses have no form for them.
_NEVER: Final = frozenset(
    {
        *("tools", "functions", "function_call", "tool_choice", "logprobs", "top_logprobs"),
        *("audio", "modalities", "echo", "best_of", "web_search_options"),
    }
)
# Parameters that a model may support itself.
_BY_MODEL: Final = frozenset({"response_format", "logit_bias", "suffix", "prediction"})
SPECIAL: Final = _NEVER | _BY_MODEL


def _changes_nothing(name: str, value: Any, n: int) -> bool:
    """Returns whether a response without the parameter is what the client wants."""
    if value is None:  # not given
        return True
    if name == "response_format":
        return bool(value == {"type": "text"})
    if name == "modalities":
        return bool(value == ["text"])
    if name in ("tool_choice", "function_call"):
        return bool(value in ("none", "auto"))  # without tools
    if name == "best_of":
        return type(value) is int and value == n
    # A completion's `logprobs: 0` still asks for log probabilities.
    return value is False or value in ("", [], {}) or (name == "top_logprobs" and value == 0)


def check_supported(params: Mapping[str, Any], n: int, fields: frozenset[str]) -> None:
    """Refuses such parameters, unless the model takes them (`fields`) itself."""
    for name in SPECIAL.intersection(params):
        is_models = name in _BY_MODEL and name in fields
        if not is_models and not _changes_nothing(name, params[name], n):
            raise refused(
                f"The parameter {name} is not supported here", param=name, code="unsupported"
            )


@dataclass(slots=True)
class TextJob:
    """One request for texts, and the data that its calls share."""

    exchange: Exchange
    model: OpenAIModel
    params: Mapping[str, Any]  # null is as if the parameter were absent
    prompts: Sequence[str]  # empty for a chat
    messages: Sequence[Mapping[str, Any]] | None  # None for a completion
    stops: Sequence[str]
    n: int  # texts for each prompt
    texts: int  # in total
    chat_prompt: str | None = None
    turns: anyio.CapacityLimiter | None = None  # for several calls

    @property
    def streams(self) -> bool:
        return self.params.get("stream") or False

    @property
    def forms(self) -> AnswerForms:
        return self.model.completions if self.messages is None else self.model.chats

    @property
    def with_usage(self) -> bool:
        options = self.params.get("stream_options")
        return options is not None and bool(options.get("include_usage"))

    @property
    def times(self) -> ItemTimes:
        return self.exchange.item_times(self.model.endpoint.name)

    def form(self) -> MessageForm:
        return self.forms.messages(self.exchange.id)

    def whole(self, texts: Sequence[tuple[str, TextEnd]]) -> bytes:
        return self.forms.whole(self.exchange.id, texts, self.prompt_tokens())

    def prompt_tokens(self) -> int:
        """Returns the number of tokens of the prompts, once an item was made."""
        return sum(map(self.model.prompt_count, self._counted()))

    def _counted(self) -> Sequence[str]:
        """Returns the texts that make up the prompts."""
        if self.messages is None:
            return self.prompts
        if self.chat_prompt is not None:
            return (self.chat_prompt,)
        return [str(message["content"]) for message in self.messages]

    def item(self, call: EndpointCall, batcher: MethodBatcher, nth: int = 0) -> tuple[Any, TextEnd]:
        """Returns the item of the call for one of the texts, and the `TextEnd` of that text."""
        model, params = self.model, self.params
        maker = model.maker(batcher)
        if not SPECIAL.isdisjoint(params):
            check_supported(params, self.n, maker.fields)
        which, sample = divmod(nth, self.n) if nth else (0, 0)
        prompt: str | None
        if self.messages is None:
            prompt = self.prompts[which]
        elif maker.takes_messages:
            prompt = None
        else:
            if self.chat_prompt is None:
                self.chat_prompt = model.prompt(self.messages)
            prompt = self.chat_prompt
        if (
            sample and (seed := params.get("seed")) is not None
        ):  # otherwise all texts would be the same
            params = {**params, "seed": seed + sample}
        item = maker.item(prompt, params)
        count, most = model.count, params.get("max_tokens")
        if most is None and maker.fields:
            most = maker.limit(item)
        if count is None and not call.streams:
            count = count_words
            if "max_tokens" in maker.fields:
                most = None  # the model counts its own tokens, which are not words
        return item, TextEnd(self.stops, most, count)


MOST_STOPS: Final = 4
LONGEST_STOP: Final = 256
LONGEST_NAME: Final = 256

_OPEN: Final = ConfigDict(extra="allow", strict=True)
_IN_ORDER: Final = Field(union_mode="left_to_right")  # faster than comparing all fits
_Count = Annotated[int, Field(ge=1, le=2**31)]
_Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class _StreamOptions(TypedDict, total=False):
    include_usage: bool | None


@with_config(_OPEN)
class _Text(TypedDict):
    model: _Name
    max_tokens: NotRequired[_Count | None]
    n: NotRequired[_Count | None]
    stop: NotRequired[str | list[str] | None]
    stream: NotRequired[bool | None]
    stream_options: NotRequired[_StreamOptions | None]
    temperature: NotRequired[Annotated[float, Field(ge=0, le=2)] | None]
    top_p: NotRequired[Annotated[float, Field(ge=0, le=1)] | None]
    seed: NotRequired[Annotated[int, Field(ge=-(2**63), lt=2**63)] | None]


@with_config(_OPEN)
class _Completion(_Text):
    prompt: Annotated[str | list[Any], _IN_ORDER]


@with_config(_OPEN)
class _Message(TypedDict):
    role: Annotated[str, Field(max_length=64)]
    content: NotRequired[Annotated[str | list[dict[str, Any]], _IN_ORDER] | None]


@with_config(_OPEN)
class _Chat(_Text):
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: NotRequired[_Count | None]


@cache
def _type(*, chat: bool) -> JsonType:
    # Once for all applications: it takes milliseconds to build.
    return JsonType(adapter_of(_Chat if chat else _Completion))


@dataclass(frozen=True)
class TextReader:
    """Reads the bodies of one of the two paths."""

    models: Models
    chat: bool
    most_messages: int
    most_choices: int

    def read(self, exchange: Exchange, body: bytes) -> TextJob:
        """Raises `Refused` if the body is malformed or asks for too much."""
        try:
            params: dict[str, Any] = _type(chat=self.chat).parsed(exchange, body)
        except Refused as refusal:
            raise of_invalid_item(refusal) from None
        n: int = params.get("n") or 1
        prompts: Sequence[str] = ()
        messages: Sequence[Mapping[str, Any]] | None = None
        if self.chat:
            messages = self._messages(params)
            if (most := params.get("max_completion_tokens")) is not None:
                params["max_tokens"] = most
        else:
            prompts = _prompts(params["prompt"])
        texts = 1 if n == 1 and len(prompts) <= 1 else self._texts(n, len(prompts))
        stops: Sequence[str] = ()
        if (stop := params.get("stop")) is not None:
            stops = params["stop"] = _stops(stop)
        model = self.models.of(params["model"])
        return TextJob(exchange, model, params, prompts, messages, stops, n, texts)

    def _texts(self, n: int, prompts: int) -> int:
        texts = n * max(1, prompts)
        if texts > self.most_choices:
            param = "n" if n > 1 else "prompt"
            detail = f"An answer has {self.most_choices} choices at most, and {texts} are wanted"
            raise refused(detail, param=param)
        return texts

    def _messages(self, params: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        messages: list[dict[str, Any]] = params["messages"]
        if (count := len(messages)) > self.most_messages:
            detail = f"A chat has {self.most_messages} messages at most, and there are {count}"
            raise refused(detail, param="messages")
        for nth, message in enumerate(messages):
            content = message.get("content")
            if not isinstance(content, str):
                message["content"] = _text_of(content, f"messages.{nth}.content")
        return messages


def _text_of(content: list[dict[str, Any]] | None, param: str) -> str:
    """Returns the text of a message whose content is a list of parts, or nothing."""
    texts: list[str] = []
    for part in content or ():
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            raise refused("The parts of a message must be texts", param=param, code="unsupported")
        texts.append(text)
    return "".join(texts)


def _prompts(value: str | list[Any]) -> Sequence[str]:
    if isinstance(value, str):
        return (value,)
    if not value:
        raise refused("There must be a prompt", param="prompt")
    if not all(isinstance(one, str) for one in value):
        raise refused("Prompts must be texts; tokens are not supported", param="prompt")
    return value


def _stops(value: str | list[str]) -> Sequence[str]:
    stops = [value] if isinstance(value, str) else value
    if len(stops) > MOST_STOPS or not all(0 < len(stop) <= LONGEST_STOP for stop in stops):
        raise refused(
            f"stop must be at most {MOST_STOPS} sequences of 1 to {LONGEST_STOP} characters",
            param="stop",
        )
    return stops
