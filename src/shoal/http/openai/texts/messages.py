"""The forms of the responses with texts: whole ones, and the messages of streams.

All but the text of a message is the same for a whole stream, and is made once. A token therefore
costs about as much as in Shoal's own form.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import orjson

from shoal.http.openai.errors import error_json
from shoal.http.openai.texts.results import OF_MESSAGES, TextOutput
from shoal.http.requests.exchange import JSON
from shoal.http.requests.plain import encoded, one_line_json, whole_text
from shoal.http.requests.protocol import StreamForm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.http.openai.texts.results import TextEnd
    from shoal.http.requests.problem import Problem


# Parameters that change the response, so that a model must take them itself.
SPECIAL: Final = frozenset(
    {
        *("tools", "tool_choice", "functions", "function_call", "logprobs", "top_logprobs"),
        *("response_format", "logit_bias", "suffix", "prediction", "echo", "best_of"),
        *("audio", "modalities", "web_search_options"),
    }
)
_CHOICES_OF: Final = {"tool_choice": "tools", "function_call": "functions"}


class Parts(NamedTuple):
    """The differences between the two kinds of responses."""

    id: bytes
    object: bytes
    # The object of a message, as `object` of a whole response.
    chunk: bytes
    # Before and after the JSON of a piece's text; as `text` for a whole text.
    piece: tuple[bytes, bytes]
    # In its place in the last message.
    no_piece: bytes
    text: tuple[bytes, bytes]


_USAGE: Final = b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
_END: Final = b'],"usage":' + _USAGE + b"}"
# For chats, and for completions.
_PARTS: Final = {
    True: Parts(
        b"chatcmpl-",
        b"chat.completion",
        b"chat.completion.chunk",
        (b'"delta":{"content":', b"}"),
        b'"delta":{}',
        (b'"message":{"role":"assistant","content":', b',"refusal":null}'),
    ),
    False: Parts(
        b"cmpl-",
        b"text_completion",
        b"text_completion",
        (b'"text":', b""),
        b'"text":""',
        (b'"text":', b""),
    ),
}

_ROLE: Final = b'"delta":{"role":"assistant","content":""}'
_GOES_ON: Final = b',"logprobs":null,"finish_reason":null}]'


class TextAsked(NamedTuple):
    """What a request of texts asks for, for the forms of their streams."""

    id: bytes  # safe characters only
    prompt_tokens: Callable[[], int]
    with_usage: bool


class Forms(ABC):
    # Parameters that change the response, so that a model must take them itself.
    special: ClassVar[frozenset[str]] = SPECIAL
    # Fields of a result that its message has as well.
    passes: ClassVar[Sequence[str]] = OF_MESSAGES
    media_type: bytes = JSON

    def changes_nothing(self, name: str, params: Mapping[str, Any], n: int) -> bool:
        """Returns whether a response without the parameter is what the client wants."""
        value = params[name]
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

    @abstractmethod
    def stream(self, asked: TextAsked, output: TextOutput) -> StreamForm:
        """Returns the form of a stream with one text."""

    @abstractmethod
    def whole(
        self, request_id: bytes, outputs: Sequence[TextOutput], prompt_tokens: int
    ) -> bytes: ...


class AnswerForms(Forms):
    """The forms of the responses of one model, to chats or to completions."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._chat = chat
        self._parts = parts = _PARTS[chat]
        about = b'","created":%d,"model":' + one_line_json(orjson.dumps(model)).replace(b"%", b"%%")
        head = b'{"id":"' + parts.id + b'%b","object":"'
        self._head = head + parts.chunk + about
        head += parts.object + about + b',"choices":['
        self._whole = head + b"%b" + _END

    def stream(self, asked: TextAsked, output: TextOutput) -> OneText:
        return OneText(self.messages(asked.id), output, asked)

    def messages(self, request_id: bytes) -> MessageForm:
        return MessageForm(self._parts, self._head % (request_id, time.time()), self._chat)

    def whole(self, request_id: bytes, outputs: Sequence[TextOutput], prompt_tokens: int) -> bytes:
        choices = [self._choice(nth, output) for nth, output in enumerate(outputs)]
        tokens = sum([output.end.tokens for output in outputs])
        counts = (prompt_tokens, tokens, prompt_tokens + tokens)
        return self._whole % (request_id, time.time(), b",".join(choices), *counts)

    def _choice(self, index: int, output: TextOutput) -> bytes:
        text, fields = output.text, output.fields
        if self._chat and fields:
            given = {"role": "assistant", "content": text or None, "refusal": None, **fields}
            part = b'"message":' + encoded(given)
        else:
            part = orjson.dumps(text).join(self._parts.text)
        logprobs = _logprobs_json(output.logprobs, chat=self._chat)
        reason = _reason_json(output.end)
        return b'{"index":%d,%b,"logprobs":%b,"finish_reason":%b}' % (index, part, logprobs, reason)


@lru_cache
def forms_of(model: str, *, chat: bool) -> AnswerForms:
    return AnswerForms(model, chat=chat)


def _reason_json(end: TextEnd) -> bytes:
    return orjson.dumps(end.reason or "stop")


def _logprobs_json(logprobs: Mapping[str, Any] | None, *, chat: bool) -> bytes:
    """Writes log probabilities; a list of tokens becomes the lists that completions have."""
    if logprobs is None:
        return b"null"
    if chat or "content" not in logprobs:
        return encoded(logprobs)
    entries: Sequence[Mapping[str, Any]] = logprobs["content"]
    tops = [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in entries]
    return encoded(
        {
            "tokens": [one["token"] for one in entries],
            "token_logprobs": [one["logprob"] for one in entries],
            "top_logprobs": tops if any(tops) else None,
        }
    )


class MessageForm(NamedTuple):
    """The common parts of the messages of one stream; `head` begins each message's JSON."""

    parts: Parts
    head: bytes
    chat: bool


class ChoiceMessages:
    __slots__ = ("_chat", "_first", "_head", "_last", "_tail", "after", "before", "output")

    def __init__(
        self, form: MessageForm, index: int, output: TextOutput, *, with_usage: bool
    ) -> None:
        parts = form.parts
        head = b'data: %b,"choices":[{"index":%d,' % (form.head, index)
        tail = (b',"usage":null}' if with_usage else b"}") + b"\n\n"
        self.output = output
        self._chat = form.chat
        self._head, self._tail = head, tail
        self._first = head + _ROLE + _GOES_ON + tail if form.chat else b""
        self.before = head + parts.piece[0]
        self.after = parts.piece[1] + _GOES_ON + tail
        self._last = head + parts.no_piece + b',"logprobs":null,"finish_reason":%b}]' + tail

    def piece(self, piece: Any) -> bytes:
        text, fields, logprobs = self.output.take(piece)
        if logprobs is None and not (fields and self._chat):
            return self._message(text)
        if self._chat:
            delta = {"content": text, **fields} if text else fields
            part = b'"delta":' + encoded(delta)
        else:
            part = b'"text":' + orjson.dumps(text)
        given = _logprobs_json(logprobs, chat=self._chat)
        more = one_line_json(b'%b,"logprobs":%b,"finish_reason":null}]' % (part, given))
        return self._message("", self._head + more + self._tail)

    def ended(self) -> bytes:
        """Returns the rest of the messages, once the model has ended the text."""
        return b"" if self.output.end.reason is not None else self._message(self.output.rest())

    def _message(self, text: str, more: bytes = b"") -> bytes:
        message, self._first = self._first + more, b""
        if text:
            message += self.before + one_line_json(orjson.dumps(text)) + self.after
        end = self.output.end
        return message if end.reason is None else message + self._last % _reason_json(end)


class EventStream(StreamForm):
    media_type = b"text/event-stream; charset=utf-8"
    heartbeat = b":\n"


def error_event(problem: Problem) -> bytes:
    return b"data: " + one_line_json(error_json(problem)) + b"\n\n"


class _Events(EventStream):
    def __init__(self, form: MessageForm, ends: Sequence[TextEnd], asked: TextAsked) -> None:
        self._form = form
        self._ends = ends
        self._asked = asked
        self._prompt_count: int | None = None

    def _count_prompt(self) -> int:
        # First before the end of the stream, where it must not fail.
        if self._prompt_count is None:
            self._prompt_count = self._asked.prompt_tokens()
        return self._prompt_count

    def end(self) -> bytes:
        last = b"data: [DONE]\n\n"
        if not self._asked.with_usage:
            return last
        prompt_tokens, tokens = self._count_prompt(), sum([end.tokens for end in self._ends])
        usage = _USAGE % (prompt_tokens, tokens, prompt_tokens + tokens)
        return b'data: %b,"choices":[],"usage":%b}\n\n%b' % (self._form.head, usage, last)

    def error(self, problem: Problem, request_id: str) -> bytes:
        return error_event(problem)


class OneText(_Events):
    def __init__(self, form: MessageForm, output: TextOutput, asked: TextAsked) -> None:
        end = output.end
        super().__init__(form, (end,), asked)
        self._choice = choice = ChoiceMessages(form, 0, output, with_usage=asked.with_usage)
        self.runs_users_code = end.counts
        self._text = end
        self._before = choice.before
        self._after = choice.after
        self._plain_below: float = 0  # only the first message begins with the role
        if asked.with_usage:
            self._count_prompt()

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
    def item(self, value: bytes) -> bytes:
        if self._asked.with_usage:
            self._count_prompt()  # not sooner: the prompt of a chat is made with its calls
        return value
