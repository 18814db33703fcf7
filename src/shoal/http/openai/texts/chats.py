"""Chats and completions: their requests, and their responses, whole or as messages of a stream.

All but the text of a message is the same for a whole stream, and is made once. A token therefore
costs about as much as in Shoal's own form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

import orjson
from pydantic import Field, with_config
from typing_extensions import TypedDict

from shoal.http.openai.errors import OPEN, Body, error_json, read_body, refused
from shoal.http.openai.items import TextMaker, prompts_of
from shoal.http.openai.texts.text_job import Chat, Limit, Prompts, TextJob, Tools, check_limit
from shoal.http.requests.plain import encoded, one_line_json, whole_text
from shoal.http.requests.protocol import StreamForm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.http.openai.models import OpenAIModels
    from shoal.http.openai.texts.results import TextEnd, TextOutput
    from shoal.http.openai.texts.text_job import Source
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem


# It stands for the text of a piece in a message that is made once.
_MARK: Final = "\0"
_MARK_JSON: Final = orjson.dumps(_MARK)


@dataclass(eq=False)
class ChatJob(TextJob):
    """A request for a chat, or for completions of prompts."""

    chat: bool = True

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        options: Mapping[str, Any] = self.params.get("stream_options") or {}
        return bool(options.get("include_usage"))

    def form(self, output: TextOutput) -> OneText:
        return OneText(self, output)

    def message(self, *choices: Mapping[str, Any], usage: Mapping[str, int] | None = None) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        more = {"usage": usage} if self.with_usage else {}
        return event({**self._about(kind), "choices": choices, **more})

    def whole(self, outputs: Sequence[TextOutput]) -> bytes:
        about = self._about("chat.completion" if self.chat else "text_completion")
        choices = [self._choice(nth, output) for nth, output in enumerate(outputs)]
        usage = self.usage([output.end for output in outputs])
        return encoded({**about, "choices": choices, "usage": usage})

    def _about(self, kind: str) -> dict[str, Any]:
        own_id = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.exchange.request_id}"
        return {"id": own_id, "object": kind, "created": self.created, "model": self.model.name}

    def usage(self, ends: Sequence[TextEnd]) -> dict[str, int]:
        prompt, completion = self.prompt_tokens, sum([end.tokens for end in ends])
        total = prompt + completion
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}

    def _choice(self, index: int, output: TextOutput) -> dict[str, Any]:
        text = output.text
        part: dict[str, Any] = {"text": text}
        if self.chat:
            fields = output.fields
            content = text or None if fields else text
            message = {"role": "assistant", "content": content, "refusal": None, **fields}
            part = {"message": message}
        logprobs = _logprobs(output.logprobs, chat=self.chat)
        return _choice(index, part, logprobs, output.end.reason or "stop")


def _choice(
    index: int, part: Mapping[str, Any], logprobs: Mapping[str, Any] | None, reason: str | None
) -> dict[str, Any]:
    return {"index": index, **part, "logprobs": logprobs, "finish_reason": reason}


def _logprobs(logprobs: Mapping[str, Any] | None, *, chat: bool) -> Mapping[str, Any] | None:
    """Returns log probabilities; a list of tokens becomes the lists that completions have."""
    if logprobs is None or chat or "content" not in logprobs:
        return logprobs
    entries: Sequence[Mapping[str, Any]] = logprobs["content"]
    tops = [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in entries]
    return {
        "tokens": [one["token"] for one in entries],
        "token_logprobs": [one["logprob"] for one in entries],
        "top_logprobs": tops if any(tops) else None,
    }


class ChoiceMessages:
    __slots__ = ("_index", "_is_first", "_job", "after", "before", "output")

    def __init__(self, job: ChatJob, index: int, output: TextOutput) -> None:
        self._job = job
        self._index = index
        self._is_first = job.chat  # then the role comes first
        self.output = output
        piece = {"delta": {"content": _MARK}} if job.chat else {"text": _MARK}
        self.before, _, self.after = self._chunk(piece).rpartition(_MARK_JSON)

    def piece(self, piece: Any) -> bytes:
        text, fields, logprobs = self.output.take(piece)
        chat = self._job.chat
        if logprobs is None and not (fields and chat):
            return self._message(text)
        part: dict[str, Any] = {"text": text}
        if chat:
            part = {"delta": {"content": text, **fields} if text else fields}
        return self._message("", self._chunk(part, _logprobs(logprobs, chat=chat)))

    def ended(self) -> bytes:
        """Returns the rest of the messages, once the model has ended the text."""
        return b"" if self.output.end.reason is not None else self._message(self.output.rest())

    def _message(self, text: str, message: bytes = b"") -> bytes:
        if self._is_first:
            self._is_first = False
            message = self._chunk({"delta": {"role": "assistant", "content": ""}}) + message
        if text:
            message += self.before + one_line_json(orjson.dumps(text)) + self.after
        if (reason := self.output.end.reason) is not None:
            message += self._chunk({"delta": {}} if self._job.chat else {"text": ""}, None, reason)
        return message

    def _chunk(
        self,
        part: Mapping[str, Any],
        logprobs: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> bytes:
        return self._job.message(_choice(self._index, part, logprobs, reason))


def event(content: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % one_line_json(encoded(content))


class EventStream(StreamForm):
    media_type = b"text/event-stream; charset=utf-8"
    heartbeat = b":\n"

    def error(self, problem: Problem, request_id: str) -> bytes:
        return b"data: %b\n\n" % one_line_json(error_json(problem))


class _Events(EventStream):
    def __init__(self, job: ChatJob, *ends: TextEnd) -> None:
        self._job = job
        self._ends = [*ends]

    def end(self) -> bytes:
        last = b"data: [DONE]\n\n"
        if not self._job.with_usage:
            return last
        return self._job.message(usage=self._job.usage(self._ends)) + last


class OneText(_Events):
    def __init__(self, job: ChatJob, output: TextOutput) -> None:
        end = output.end
        super().__init__(job, end)
        self._choice = choice = ChoiceMessages(job, 0, output)
        self.runs_users_code = end.counts
        self._text = end
        self._before = choice.before
        self._after = choice.after
        self._plain_below: float = 0  # only the first message begins with the role
        if job.with_usage:
            _ = job.prompt_tokens  # not first at the end of the stream, where it must not fail

    def item(self, value: Any) -> bytes:
        text = self._text
        tokens = text.tokens + 1
        if tokens < self._plain_below and type(value) is str and text.is_clear(value):
            piece = one_line_json(orjson.dumps(whole_text(value)))
            message = self._before + piece + self._after
            text.tokens = tokens
            return message
        message = self._choice.piece(value)
        self._plain_below = text.plain_below
        self.is_over = text.reason is not None
        return message

    def end(self) -> bytes:
        return self._choice.ended() + super().end()


class SeveralTexts(_Events):
    def begin(self, index: int, output: TextOutput) -> ChoiceMessages:
        self._ends.append(output.end)
        return ChoiceMessages(self._job, index, output)

    def item(self, value: bytes) -> bytes:
        if self._job.with_usage:
            _ = self._job.prompt_tokens  # not sooner: the prompt of a chat is made with its calls
        return value


MOST_STOPS: Final = 64
LONGEST_STOP: Final = 256

_IN_ORDER: Final = Field(union_mode="left_to_right")  # faster than comparing all fits
_Count = Annotated[int, Field(ge=1, le=2**31)]


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
) -> ChatJob:
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
    return ChatJob(exchange, model, params, source, stops, n, texts, chat=chat)


def _texts(n: int, prompts: int, most: int) -> int:
    texts = n * prompts
    if texts > most:
        param = "n" if n > 1 else "prompt"
        detail = f"An answer has {most} choices at most, and {texts} are wanted"
        raise refused(detail, param=param)
    return texts


def _stops(value: str | list[str]) -> Sequence[str]:
    stops = [stop for stop in ([value] if isinstance(value, str) else value) if stop]
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        detail = f"stop must be at most {MOST_STOPS} sequences of at most {LONGEST_STOP} characters"
        raise refused(detail, param="stop")
    return stops
