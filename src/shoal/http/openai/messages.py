"""The forms of the responses with texts: whole ones, and the messages of streams.

All but the text of a message is the same for a whole stream, and is made once. A token therefore
costs about as much as in Shoal's own form.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from typing_extensions import override

from shoal.http.openai.errors import error_json
from shoal.http.requests.plain import one_line_json, whole_text
from shoal.http.requests.protocol import StreamForm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.http.openai.text import TextEnd
    from shoal.http.requests.problem import Problem


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
_REASONS: Final = {"stop": b"stop", "length": b"length", None: b"stop"}
_GOES_ON: Final = b',"logprobs":null,"finish_reason":null}]'


class NotText(TypeError):
    """A result of a model is not text; perhaps the client named the wrong model."""

    def __init__(self, result: object) -> None:
        super().__init__(f"the model gives no text, but results of {type(result).__name__}")


def text_of(result: Any) -> str:
    """Returns a result without halves of surrogate pairs; raises `NotText` if it is not text."""
    if not isinstance(result, str):
        raise NotText(result)
    return whole_text(result)


class AnswerForms:
    """The forms of the responses of one model, to chats or to completions."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._chat = chat
        self._parts = parts = _PARTS[chat]
        about = b'","created":%d,"model":' + one_line_json(orjson.dumps(model)).replace(b"%", b"%%")
        head = b'{"id":"' + parts.id + b'%b","object":"'
        self._head = head + parts.chunk + about
        self._choice = (
            b'{"index":%d,' + b"%b".join(parts.text) + b',"logprobs":null,"finish_reason":"%b"}'
        )
        head += parts.object + about + b',"choices":['
        self._whole = head + b"%b" + _END

    def messages(self, request_id: bytes) -> MessageForm:
        """Returns the form of a stream's messages; the id has safe characters only."""
        return MessageForm(self._parts, self._head % (request_id, time.time()), self._chat)

    def whole(
        self, request_id: bytes, texts: Sequence[tuple[str, TextEnd]], prompt_tokens: int
    ) -> bytes:
        choices: list[bytes] = []
        tokens = 0
        for text, end in texts:
            reason = _REASONS[end.reason]
            choices.append(self._choice % (len(choices), orjson.dumps(text), reason))
            tokens += end.tokens
        counts = (prompt_tokens, tokens, prompt_tokens + tokens)
        return self._whole % (request_id, time.time(), b",".join(choices), *counts)


class MessageForm(NamedTuple):
    """The common parts of the messages of one stream; `head` begins each message's JSON."""

    parts: Parts
    head: bytes
    chat: bool


class ChoiceMessages:
    """The messages with the pieces of one text of a stream."""

    __slots__ = ("_first", "_last", "after", "before", "end")

    def __init__(self, form: MessageForm, index: int, end: TextEnd, *, with_usage: bool) -> None:
        parts = form.parts
        head = b'data: %b,"choices":[{"index":%d,' % (form.head, index)
        tail = (b',"usage":null}' if with_usage else b"}") + b"\n\n"
        self.end = end
        self._first = head + _ROLE + _GOES_ON + tail if form.chat else b""
        self.before = head + parts.piece[0]
        self.after = parts.piece[1] + _GOES_ON + tail
        self._last = head + parts.no_piece + b',"logprobs":null,"finish_reason":"%b"}]' + tail

    def piece(self, piece: Any) -> bytes:
        """Returns the message with a piece, and with the first or the last message if due."""
        return self._message(self.end.take(text_of(piece)))

    def ended(self) -> bytes:
        """Returns the rest of the messages, once the model has ended the text."""
        return b"" if self.end.reason is not None else self._message(self.end.rest())

    def _message(self, text: str) -> bytes:
        message, self._first = self._first, b""
        if text:
            message += self.before + one_line_json(orjson.dumps(text)) + self.after
        reason = self.end.reason
        return message if reason is None else message + self._last % _REASONS[reason]


class _Events(StreamForm):
    """The end and the errors of a stream."""

    media_type = b"text/event-stream; charset=utf-8"
    heartbeat = b":\n"

    def __init__(
        self,
        form: MessageForm,
        ends: Sequence[TextEnd],
        prompt_tokens: Callable[[], int],
        *,
        with_usage: bool,
    ) -> None:
        self._form = form
        self._ends = ends
        self._prompt_tokens = prompt_tokens
        self._with_usage = with_usage
        self._prompt_count: int | None = None

    def _count_prompt(self) -> int:
        """Counts the tokens of the prompts once."""
        # First before the end of the stream, where it must not fail.
        if self._prompt_count is None:
            self._prompt_count = self._prompt_tokens()
        return self._prompt_count

    @override
    def end(self) -> bytes:
        last = b"data: [DONE]\n\n"
        if not self._with_usage:
            return last
        prompt_tokens, tokens = self._count_prompt(), sum([end.tokens for end in self._ends])
        usage = _USAGE % (prompt_tokens, tokens, prompt_tokens + tokens)
        return b'data: %b,"choices":[],"usage":%b}\n\n%b' % (self._form.head, usage, last)

    @override
    def error(self, problem: Problem, request_id: str) -> bytes:
        return b"data: " + one_line_json(error_json(problem)) + b"\n\n"


class OneText(_Events):
    """The form of a stream with one text, whose items are its pieces."""

    def __init__(
        self, form: MessageForm, end: TextEnd, prompt_tokens: Callable[[], int], *, with_usage: bool
    ) -> None:
        super().__init__(form, (end,), prompt_tokens, with_usage=with_usage)
        self._choice = choice = ChoiceMessages(form, 0, end, with_usage=with_usage)
        self.runs_users_code = end.counts
        self._text = end
        self._before = choice.before
        self._after = choice.after
        self._plain_below: float = 0  # only the first message begins with the role
        if with_usage:
            self._count_prompt()

    @override
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

    @override
    def end(self) -> bytes:
        return self._choice.ended() + super().end()


class SeveralTexts(_Events):
    """The form of a stream with several texts, whose items are their messages."""

    @override
    def item(self, value: bytes) -> bytes:
        if self._with_usage:
            self._count_prompt()  # not sooner: the prompt of a chat is made with its calls
        return value
