"""The forms of the responses with texts: whole ones, and the messages of streams.

All but the text of a message is the same for a whole stream, and is made once. A token therefore
costs about as much as in Shoal's own form.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import orjson

from shoal.http.openai.errors import error_json
from shoal.http.openai.texts.results import OF_MESSAGES, TextOutput
from shoal.http.requests.exchange import JSON
from shoal.http.requests.plain import encoded, one_line_json, whole_text
from shoal.http.requests.protocol import StreamForm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.http.openai.items import Params
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


# It stands for the text of a piece in a message that is made once.
_MARK: Final = "\0"
_MARK_JSON: Final = orjson.dumps(_MARK)


class TextAsked(NamedTuple):
    """What a request of texts asks for, for the forms of their streams."""

    id: bytes  # safe characters only
    prompt_tokens: Callable[[], int]  # once an item was made; cached
    with_usage: bool


class Forms(ABC):
    # Parameters that change the response, so that a model must take them itself.
    special: ClassVar[frozenset[str]] = SPECIAL
    # Fields of a result that its message has as well.
    passes: ClassVar[Sequence[str]] = OF_MESSAGES
    media_type: bytes = JSON

    def changes_nothing(self, name: str, params: Params, n: int) -> bool:
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
    def whole(self, asked: TextAsked, outputs: Sequence[TextOutput]) -> bytes: ...


class AnswerForms(Forms):
    """The forms of the responses of one model, to chats or to completions."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._model = model
        self._chat = chat

    def stream(self, asked: TextAsked, output: TextOutput) -> OneText:
        return OneText(self.messages(asked), output, asked)

    def messages(self, asked: TextAsked) -> MessageForm:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return MessageForm(self._about(asked.id, kind), self._chat, asked.with_usage)

    def whole(self, asked: TextAsked, outputs: Sequence[TextOutput]) -> bytes:
        kind = "chat.completion" if self._chat else "text_completion"
        return encoded(
            {
                **self._about(asked.id, kind),
                "choices": [self._choice(nth, output) for nth, output in enumerate(outputs)],
                "usage": _usage(asked.prompt_tokens(), [output.end for output in outputs]),
            }
        )

    def _about(self, request_id: bytes, kind: str) -> dict[str, Any]:
        own_id = f"{'chatcmpl' if self._chat else 'cmpl'}-{request_id.decode()}"
        return {"id": own_id, "object": kind, "created": int(time.time()), "model": self._model}

    def _choice(self, index: int, output: TextOutput) -> dict[str, Any]:
        text = output.text
        part: dict[str, Any] = {"text": text}
        if self._chat:
            fields = output.fields
            content = text or None if fields else text
            message = {"role": "assistant", "content": content, "refusal": None, **fields}
            part = {"message": message}
        logprobs = _logprobs(output.logprobs, chat=self._chat)
        return _choice(index, part, logprobs, output.end.reason or "stop")


def _choice(
    index: int, part: Mapping[str, Any], logprobs: Mapping[str, Any] | None, reason: str | None
) -> dict[str, Any]:
    return {"index": index, **part, "logprobs": logprobs, "finish_reason": reason}


def _usage(prompt_tokens: int, ends: Sequence[TextEnd]) -> dict[str, int]:
    tokens = sum([end.tokens for end in ends])
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }


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


class MessageForm(NamedTuple):
    """The common parts of the messages of one stream."""

    about: Mapping[str, Any]
    chat: bool
    with_usage: bool

    def message(self, *choices: Mapping[str, Any], usage: Mapping[str, int] | None = None) -> bytes:
        more = {"usage": usage} if self.with_usage else {}
        return event({**self.about, "choices": choices, **more})


class ChoiceMessages:
    __slots__ = ("_form", "_index", "_is_first", "after", "before", "output")

    def __init__(self, form: MessageForm, index: int, output: TextOutput) -> None:
        self._form = form
        self._index = index
        self._is_first = form.chat  # then the role comes first
        self.output = output
        piece = {"delta": {"content": _MARK}} if form.chat else {"text": _MARK}
        self.before, _, self.after = self._chunk(piece).rpartition(_MARK_JSON)

    def piece(self, piece: Any) -> bytes:
        text, fields, logprobs = self.output.take(piece)
        chat = self._form.chat
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
            message += self._chunk({"delta": {}} if self._form.chat else {"text": ""}, None, reason)
        return message

    def _chunk(
        self,
        part: Mapping[str, Any],
        logprobs: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> bytes:
        return self._form.message(_choice(self._index, part, logprobs, reason))


def event(content: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % one_line_json(encoded(content))


class EventStream(StreamForm):
    media_type = b"text/event-stream; charset=utf-8"
    heartbeat = b":\n"

    def error(self, problem: Problem, request_id: str) -> bytes:
        return b"data: %b\n\n" % one_line_json(error_json(problem))


class _Events(EventStream):
    def __init__(self, form: MessageForm, ends: Sequence[TextEnd], asked: TextAsked) -> None:
        self._form = form
        self._ends = ends
        self._asked = asked

    def end(self) -> bytes:
        last = b"data: [DONE]\n\n"
        if not self._asked.with_usage:
            return last
        return self._form.message(usage=_usage(self._asked.prompt_tokens(), self._ends)) + last


class OneText(_Events):
    def __init__(self, form: MessageForm, output: TextOutput, asked: TextAsked) -> None:
        end = output.end
        super().__init__(form, (end,), asked)
        self._choice = choice = ChoiceMessages(form, 0, output)
        self.runs_users_code = end.counts
        self._text = end
        self._before = choice.before
        self._after = choice.after
        self._plain_below: float = 0  # only the first message begins with the role
        if asked.with_usage:
            asked.prompt_tokens()  # not first at the end of the stream, where it must not fail

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
            self._asked.prompt_tokens()  # not sooner: the prompt of a chat is made with its calls
        return value
