"""The bodies of ``/v1/completions`` and ``/v1/chat/completions``.

Unknown parameters are ignored. Parameters that would change the meaning of the response, and that
are not supported here, are refused.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from shoal.http.openai.errors import of_invalid_item, refused
from shoal.http.openai.text_job import TextJob
from shoal.http.requests.json_type import JsonType, adapter_of
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.http.openai.models import Models
    from shoal.http.requests.exchange import Exchange

MOST_STOPS: Final = 4
LONGEST_STOP: Final = 256
LONGEST_NAME: Final = 256

_OPEN: Final = ConfigDict(extra="allow", strict=True)
_IN_ORDER: Final = Field(union_mode="left_to_right")  # which is quicker than to compare the fits
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


class TextReader:
    """Reads the bodies of one of the two paths."""

    def __init__(
        self, models: Models, *, chat: bool, most_messages: int, most_choices: int
    ) -> None:
        self._models = models
        self._chat = chat
        self._most_messages = most_messages
        self._most_choices = most_choices
        self._type = _type(chat=chat)

    def read(self, exchange: Exchange, body: bytes) -> TextJob:
        """Raises `Refused` if the body is malformed or asks for too much."""
        try:
            given: dict[str, Any] = self._type.parsed(exchange, body)
        except Refused as refusal:
            raise of_invalid_item(refusal) from None
        n: int = given.get("n") or 1
        prompts: Sequence[str] = ()
        messages: Sequence[Mapping[str, Any]] | None = None
        if self._chat:
            messages = self._messages(given)
            if (most := given.get("max_completion_tokens")) is not None:
                given["max_tokens"] = most
        else:
            prompts = _prompts(given["prompt"])
        texts = 1 if n == 1 and len(prompts) <= 1 else self._texts(n, len(prompts))
        stops: Sequence[str] = ()
        if (stop := given.get("stop")) is not None:
            stops = given["stop"] = _stops(stop)
        model = self._models.of(given["model"])
        return TextJob(exchange, model, given, prompts, messages, stops, n, texts)

    def _texts(self, n: int, prompts: int) -> int:
        texts = n * max(1, prompts)
        if texts > self._most_choices:
            param = "n" if n > 1 else "prompt"
            detail = f"An answer has {self._most_choices} choices at most, and {texts} are wanted"
            raise refused(detail, param=param)
        return texts

    def _messages(self, given: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        messages: list[dict[str, Any]] = given["messages"]
        if (count := len(messages)) > self._most_messages:
            detail = f"A chat has {self._most_messages} messages at most, and there are {count}"
            raise refused(detail, param="messages")
        for message in messages:
            if type(message.get("content")) is not str:
                _make_texts(messages)
                break
        return messages


def _make_texts(messages: Sequence[dict[str, Any]]) -> None:
    for nth, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, str):
            message["content"] = _text_of(content, f"messages.{nth}.content")


def _text_of(content: list[dict[str, Any]] | None, param: str) -> str:
    """Returns the text of a message whose content is a list of parts, or nothing."""
    texts: list[str] = []
    for part in content or ():
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            raise refused("The parts of a message must be texts", param=param, code="unsupported")
        texts.append(text)
    return "".join(texts)


def _prompts(given: str | list[Any]) -> Sequence[str]:
    if isinstance(given, str):
        return (given,)
    if not given:
        raise refused("There must be a prompt", param="prompt")
    if not all(isinstance(one, str) for one in given):
        raise refused("Prompts must be texts; tokens are not supported", param="prompt")
    return given


def _stops(given: str | list[str]) -> Sequence[str]:
    stops = [given] if isinstance(given, str) else given
    if len(stops) > MOST_STOPS or not all(0 < len(stop) <= LONGEST_STOP for stop in stops):
        raise refused(
            f"stop must be at most {MOST_STOPS} sequences of 1 to {LONGEST_STOP} characters",
            param="stop",
        )
    return stops
