"""Requests for texts: their bodies, the items of their calls, and their whole responses.

Unknown parameters are ignored. Parameters that would change the meaning of the response are refused
if the model's items have no field for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from shoal.http.openai.bodies import OPEN, Body, read_body
from shoal.http.openai.errors import refused
from shoal.http.openai.items import TextMaker, prompts_of
from shoal.http.openai.results import Output
from shoal.http.openai.text import TextEnd, count_words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import anyio

    from shoal.http.openai.items import Prompt
    from shoal.http.openai.messages import AnswerForms
    from shoal.http.openai.models import Models, OpenAIModel
    from shoal.http.requests.call import EndpointCall
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.protocol import StreamForm
    from shoal.observe.metrics import ItemTimes
    from shoal.serving.backends.method_batcher import MethodBatcher

# Parameters that change the response, so that a model must take them itself.
SPECIAL: Final = frozenset(
    {
        *("tools", "tool_choice", "functions", "function_call", "logprobs", "top_logprobs"),
        *("response_format", "logit_bias", "suffix", "prediction", "echo", "best_of"),
        *("audio", "modalities", "web_search_options"),
    }
)
_CHOICES_OF: Final = {"tool_choice": "tools", "function_call": "functions"}


def _changes_nothing(name: str, value: Any, n: int, params: Mapping[str, Any]) -> bool:
    """Returns whether a response without the parameter is what the client wants."""
    if value is None:  # not given
        return True
    if name == "response_format":
        return bool(value == {"type": "text"})
    if name == "modalities":
        return bool(value == ["text"])
    if name in _CHOICES_OF:
        return bool(value == "auto" or (value == "none" and not params.get(_CHOICES_OF[name])))
    if name == "best_of":
        return type(value) is int and value == n
    # A completion's `logprobs: 0` still asks for log probabilities.
    return value is False or value in ("", [], {}) or (name == "top_logprobs" and value == 0)


def check_supported(params: Mapping[str, Any], n: int, fields: Collection[str]) -> None:
    """Refuses such parameters, unless the model takes them (`fields`) itself."""
    for name in sorted(SPECIAL.intersection(params)):
        if name not in fields and not _changes_nothing(name, params[name], n, params):
            detail = f"The model does not support {name}: its items have no field {name!r}"
            raise refused(detail, param=name, code="unsupported")


@dataclass(slots=True)
class TextJob:
    """One request for texts, and the data that its calls share; all protocols make it."""

    exchange: Exchange
    model: OpenAIModel
    # In the form of chats or completions; null is as if the parameter were absent.
    params: Mapping[str, Any]
    prompts: Sequence[Prompt]  # empty for a chat
    messages: Sequence[Mapping[str, Any]] | None  # None for a completion
    stops: Sequence[str]
    n: int  # texts for each prompt
    texts: int  # in total
    forms: AnswerForms
    # Where a message has a part that is no text.
    other_part: str | None = None
    chat_prompt: str | None = None
    turns: anyio.CapacityLimiter | None = None  # for several calls

    @property
    def streams(self) -> bool:
        return self.params.get("stream") or False

    @property
    def with_usage(self) -> bool:
        options = self.params.get("stream_options")
        return options is not None and bool(options.get("include_usage"))

    @property
    def times(self) -> ItemTimes:
        return self.exchange.item_times(self.model.endpoint.name)

    def stream(self, output: Output) -> StreamForm:
        request_id, count = self.exchange.id, self.prompt_tokens
        return self.forms.stream(request_id, output, count, with_usage=self.with_usage)

    def whole(self, outputs: Sequence[Output]) -> bytes:
        return self.forms.whole(self.exchange.id, outputs, self.prompt_tokens())

    def prompt_tokens(self) -> int:
        """Returns the number of tokens of the prompts, once an item was made."""
        return sum(map(self.model.tokens_in, self._counted()))

    def _counted(self) -> Sequence[Prompt]:
        """Returns the texts that make up the prompts."""
        if self.messages is None:
            return self.prompts
        if self.chat_prompt is not None:
            return (self.chat_prompt,)
        return [text_in(message["content"]) for message in self.messages]

    def item(self, call: EndpointCall, batcher: MethodBatcher, nth: int = 0) -> tuple[Any, Output]:
        """Returns the item of the call for one of the texts, and the `Output` of that text."""
        model, params = self.model, self.params
        maker = model.maker(batcher, TextMaker)
        which, sample = divmod(nth, self.n) if nth else (0, 0)
        prompt: Prompt | None
        fields: Collection[str] = maker.fields
        if self.messages is None:
            prompt = model.fitting(maker, self.prompts[which], "prompt")
        elif maker.takes_messages:
            prompt = None
        else:
            fields = {*fields, *model.template_fields}
            prompt = self._from_template()
        if not SPECIAL.isdisjoint(params):
            check_supported(params, self.n, fields)
        if (
            sample and (seed := params.get("seed")) is not None
        ):  # otherwise all texts would be the same
            params = {**params, "seed": seed + sample}
        item = maker.item(prompt, params, "prompt" if self.messages is None else "messages")
        count, most = model.count, params.get("max_tokens")
        if most is None and maker.fields:
            most = maker.limit(item)
        if count is None and not call.streams:
            count = count_words
            if "max_tokens" in maker.fields:
                most = None  # the model counts its own tokens, which are not words
        return item, Output(TextEnd(self.stops, most, count))

    def _from_template(self) -> str:
        if self.other_part is not None:
            detail = (
                "The model takes texts only: its items have no field 'messages' for other parts"
            )
            raise refused(detail, param=self.other_part, code="unsupported")
        if self.chat_prompt is None:
            assert self.messages is not None
            self.chat_prompt = self.model.prompt(self.messages, self.params)
        return self.chat_prompt


MOST_STOPS: Final = 64
LONGEST_STOP: Final = 256
MOST_TOOLS: Final = 128
# Of all messages of a chat.
MOST_PARTS: Final = 1024

_IN_ORDER: Final = Field(union_mode="left_to_right")  # faster than comparing all fits
_Count = Annotated[int, Field(ge=1, le=2**31)]
# -1 is no limit.
_Limit = Annotated[int, Field(ge=-1, le=2**31)]
_Tools = Annotated[list[dict[str, Any]], Field(max_length=MOST_TOOLS)]


class _StreamOptions(TypedDict, total=False):
    include_usage: bool | None


@with_config(OPEN)
class _Text(Body):
    max_tokens: NotRequired[_Limit | None]
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
    max_completion_tokens: NotRequired[_Limit | None]
    tools: NotRequired[_Tools | None]
    functions: NotRequired[_Tools | None]


@dataclass(frozen=True)
class TextReader:
    """Reads the bodies of one of the two paths."""

    models: Models
    chat: bool
    most_messages: int
    most_choices: int

    def read(self, exchange: Exchange, body: bytes) -> TextJob:
        """Raises `Refused` if the body is malformed or asks for too much."""
        params = read_body(_Chat if self.chat else _Completion, exchange, body)
        messages: Sequence[dict[str, Any]] | None = None
        if self.chat:
            messages = params["messages"]
            if (most := params.get("max_completion_tokens")) is not None:
                params["max_tokens"] = most
        return self.job(exchange, params, messages)

    def job(
        self,
        exchange: Exchange,
        params: dict[str, Any],
        messages: Sequence[dict[str, Any]] | None,
    ) -> TextJob:
        """Returns the job of a request; `messages` is None for a completion."""
        n: int = params.get("n") or 1
        prompts: Sequence[Prompt] = ()
        other_part = None
        if messages is not None:
            other_part = self._read_messages(messages)
        else:
            prompts = prompts_of(params["prompt"], "prompt")
        if (most := params.get("max_tokens")) is not None and most < 1:
            if most == 0:
                raise refused(
                    "max_tokens must be at least 1, or -1 for no limit", param="max_tokens"
                )
            params["max_tokens"] = None
        texts = 1 if n == 1 and len(prompts) <= 1 else self._texts(n, len(prompts))
        stops: Sequence[str] = ()
        if (stop := params.get("stop")) is not None:
            stops = params["stop"] = _stops(stop)
        model = self.models.of(params.get("model"), TextMaker)
        forms = model.completions if messages is None else model.chats
        return TextJob(
            exchange, model, params, prompts, messages, stops, n, texts, forms, other_part
        )

    def _texts(self, n: int, prompts: int) -> int:
        texts = n * max(1, prompts)
        if texts > self.most_choices:
            param = "n" if n > 1 else "prompt"
            detail = f"An answer has {self.most_choices} choices at most, and {texts} are wanted"
            raise refused(detail, param=param)
        return texts

    def _read_messages(self, messages: Sequence[dict[str, Any]]) -> str | None:
        """Joins the texts of messages; returns the place of another part, if there is one."""
        if (count := len(messages)) > self.most_messages:
            detail = f"A chat has {self.most_messages} messages at most, and there are {count}"
            raise refused(detail, param="messages")
        parts = 0
        other = None
        for nth, message in enumerate(messages):
            content = message.get("content")
            if isinstance(content, str):
                continue
            param = f"messages.{nth}.content"
            parts += len(content or ())
            if parts > MOST_PARTS:
                detail = f"The messages of a chat have {MOST_PARTS} parts at most"
                raise refused(detail, param=param)
            if _are_texts(content or (), param):
                message["content"] = text_in(content)
            else:
                other = other or param
        return other


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


def text_in(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Returns the texts in the content of a message."""
    if isinstance(content, str):
        return content
    return "".join([part["text"] for part in content or () if part["type"] == "text"])


def _stops(value: str | list[str]) -> Sequence[str]:
    stops = [stop for stop in ([value] if isinstance(value, str) else value) if stop]
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        detail = f"stop must be at most {MOST_STOPS} sequences of at most {LONGEST_STOP} characters"
        raise refused(detail, param="stop")
    return stops
