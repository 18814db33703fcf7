"""What a model gives: texts, or records with more of OpenAI's fields, whole or in pieces.

A result is a text, or a dict, a dataclass or a pydantic model with some of these fields:

==============================  =================================================================
``content`` or ``text``         the text
``tool_calls``                  a list of calls: ``name``, ``arguments`` (JSON, or its value), and
                                perhaps an ``id``, as they are or under ``function``. A piece of a
                                stream continues the last call if it has no ``name``, or else that
                                of its ``index``
``finish_reason``               ends the text
``logprobs``                    a list with a dict for each token, or a dict in OpenAI's form
``refusal``, ``audio``, ...     the same in the message
==============================  =================================================================

`TextEnd` finds where a text ends: at a stop sequence, or at its number of tokens. Both work for
every model, even if it supports neither. A stop sequence may lie across pieces, so an end of the
text that may begin one is held back until the next piece.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pydantic import BaseModel

from shoal.http.openai.models import count_words
from shoal.http.requests.plain import encoded, whole_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TextEnd:
    """Finds the end of one text, which is before the first stop sequence."""

    # Defaults that most texts keep.
    # "stop" or "length" once the text has ended.
    reason: str | None = None
    tokens = 0
    _firsts: frozenset[str] = frozenset()
    _held = ""

    def __init__(
        self, stops: Sequence[str], most: int | None, count: Callable[[str], int] | None
    ) -> None:
        self._stops = stops
        self._most = most
        # None if each piece is one token.
        self._count = count
        if stops:
            self._firsts = frozenset(stop[0] for stop in stops)

    @property
    def counts(self) -> bool:
        return self._count is not None

    @property
    def plain_below(self) -> float:
        """The number of tokens below which a piece that `is_clear` is one token."""
        # Such a piece is taken as it is: `take` need not be called for it if `tokens` is increased.
        if self._count is not None:
            return 0
        return math.inf if self._most is None else self._most

    def is_clear(self, piece: str) -> bool:
        """Returns whether no stop sequence can begin in a piece, or continue in it."""
        if not self._stops:
            return True
        return not self._held and self._firsts.isdisjoint(piece)

    def take(self, piece: str, counted_too: str = "") -> str:
        """Takes the next piece of the text; returns the part that is certain."""
        count, most = self._count, self._most
        tokens = self.tokens + (1 if count is None else count(piece + counted_too))
        reason = None
        if most is not None and tokens >= most:
            reason = "length"
            if count is not None and tokens > most:
                piece = _beginning(piece, most - self.tokens, count)
                tokens = most
        text = self._held + piece
        places = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        held = 0
        if places:
            text, reason = text[: min(places)], "stop"
        elif reason is None and self._stops:
            held = _held_back(text, self._stops)
        certain = len(text) - held
        self._held, self.tokens, self.reason = text[certain:], tokens, reason
        return text[:certain]

    def whole(self, text: str, counted_too: str = "") -> str:
        """Takes a whole text, and no other; returns the part before its end."""
        # The limit is that of the text.
        count = self._count or count_words
        text = self.take(text)
        if self.reason == "stop":
            self.tokens = count(text)
        if counted_too:
            self.tokens += count(counted_too)
        return text + self.rest()

    def rest(self) -> str:
        """Returns the text that was held back, since the model has ended the text."""
        rest, self._held = self._held, ""
        if self.reason is None:
            self.reason = "stop"
        return rest


def _beginning(text: str, tokens: int, count: Callable[[str], int]) -> str:
    lengths = range(len(text) + 1)
    fits = bisect_right(lengths, tokens, lo=1, key=lambda length: count(text[:length])) - 1
    return text[:fits].rstrip()


def _held_back(text: str, stops: Sequence[str]) -> int:
    """Returns the length of the longest end of a text that may begin a stop sequence."""
    longest = 0
    for stop in stops:
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at >= 0 and len(text) - at > longest:
            if stop.startswith(text[at:]):
                longest = len(text) - at
                break
            at = text.find(stop[0], at + 1)
    return longest


_TEXTS: Final = ("content", "text")
# Fields that messages have as well.
OF_MESSAGES: Final = (
    *("refusal", "reasoning_content", "reasoning", "annotations", "audio", "function_call"),
)
_KNOWN: Final = (*_TEXTS, "tool_calls", "finish_reason", "logprobs")
_OF_CALLS: Final = ("function", "name", "arguments", "index", "id")


class NotText(TypeError):
    """A result of a model is not text; perhaps the client named the wrong model."""

    def __init__(self, result: object) -> None:
        super().__init__(f"the model gives no text, but results of {type(result).__name__}")


class Piece(NamedTuple):
    """A part of a text, or all of it, that a client can get."""

    text: str
    # Of a message, or of its delta.
    fields: dict[str, Any]
    logprobs: dict[str, Any] | None


class TextOutput:
    """What a model gives for one text, and where that ends."""

    # The number of tool calls that have begun.
    _begun = 0

    def __init__(self, end: TextEnd, passes: Sequence[str] = OF_MESSAGES) -> None:
        self.end = end
        self._passes = passes
        self.texts: list[str] = []
        self._pieces: list[Piece] = []

    def take(self, result: Any) -> Piece:
        """Takes a piece of a stream, or a `whole` result; returns the part that is certain."""
        if isinstance(result, Piece):
            return result
        if isinstance(result, str):
            return Piece(self.end.take(whole_text(result)), {}, None)
        given = _given(result, self._passes)
        fields = self._fields_of(given)
        end = self.end
        text = end.take(_text_of(given, result), _arguments_in(fields))
        if end.reason is None and (reason := given.get("finish_reason")):
            end.reason = str(reason)
            text += end.rest()
        return Piece(text, fields, _logprobs(given))

    def whole(self, result: Any) -> Piece:
        given = _given(result, self._passes)
        fields, text = self._fields_of(given), _text_of(given, result)
        taken = self.end.whole(text, _arguments_in(fields))
        reason = given.get("finish_reason")
        if reason and taken == text:  # no limit has ended it
            self.end.reason = str(reason)
        self._end_with_calls(is_given=bool(reason))
        return Piece(taken, fields, _logprobs(given))

    def rest(self) -> str:
        """Returns the text that was held back, since the model has ended the text."""
        is_given = self.end.reason is not None
        rest = self.end.rest()
        self._end_with_calls(is_given=is_given)
        return rest

    def _end_with_calls(self, *, is_given: bool) -> None:
        if self._begun and not is_given and self.end.reason == "stop":
            self.end.reason = "tool_calls"

    def keep(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        if piece.fields or piece.logprobs is not None:
            self._pieces.append(piece)

    @property
    def text(self) -> str:
        return whole_text("".join(self.texts))

    @property
    def logprobs(self) -> dict[str, Any] | None:
        if not self._pieces:
            return None
        given = [piece.logprobs for piece in self._pieces if piece.logprobs is not None]
        return _joined(given) if given else None

    @property
    def fields(self) -> dict[str, Any]:
        if not self._pieces:
            return {}
        fields = _joined([piece.fields for piece in self._pieces])
        if "tool_calls" in fields:
            fields["tool_calls"] = _whole_calls(fields["tool_calls"])
        return fields

    def _fields_of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        found = {name: one for name in self._passes if (one := given.get(name)) is not None}
        if calls := given.get("tool_calls"):
            found["tool_calls"] = [self._delta(_known_in(call, _OF_CALLS)) for call in calls]
        return found

    def _delta(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a tool call, or its continuation, as a stream has it."""
        inner = call.get("function")
        function = call if inner is None else _known_in(inner, _OF_CALLS)
        name, arguments = function.get("name"), function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = encoded(arguments).decode()
        index = call.get("index")
        if index is None:
            index = self._begun if name else self._begun - 1
        if not 0 <= index < self._begun + bool(name):
            raise TypeError(f"a tool call begins with its name, and its index is {self._begun}")
        if index < self._begun:
            return {"index": index, "function": {"arguments": whole_text(arguments)}}
        self._begun += 1
        return {
            "index": index,
            "id": str(call.get("id") or f"call_{secrets.token_hex(12)}"),
            "type": "function",
            "function": {"name": str(name), "arguments": whole_text(arguments)},
        }


def _arguments_in(fields: Mapping[str, Any]) -> str:
    return " ".join(call["function"]["arguments"] for call in fields.get("tool_calls", ()))


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the fields of all parts: texts and lists are joined, of others the last is kept."""
    values: defaultdict[str, list[Any]] = defaultdict(list)
    for part in parts:
        for name, value in part.items():
            values[name].append(value)
    joined: dict[str, Any] = {}
    for name, each in values.items():
        kinds = set(map(type, each))
        if kinds == {str}:
            joined[name] = "".join(each)
        elif kinds == {list}:
            joined[name] = [*chain.from_iterable(each)]
        else:
            joined[name] = each[-1]
    return joined


def _whole_calls(deltas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    arguments = defaultdict[int, list[str]](list)
    for delta in deltas:
        if "id" in delta:
            calls.append({"id": delta["id"], "type": delta["type"]})
            calls[-1]["function"] = {"name": delta["function"]["name"]}
        arguments[delta["index"]].append(delta["function"]["arguments"])
    for index, pieces in arguments.items():
        calls[index]["function"]["arguments"] = "".join(pieces)
    return calls


def _given(result: Any, passes: Sequence[str]) -> Mapping[str, Any]:
    """Returns the fields of a result; raises `NotText` if it has none that are known."""
    if isinstance(result, str):
        return {"content": result}
    known = (*_KNOWN, *passes)
    given = _known_in(result, known)
    if given.keys().isdisjoint(known):
        raise NotText(result)
    return given


def _known_in(record: Any, names: Sequence[str]) -> Mapping[str, Any]:
    if isinstance(record, Mapping):
        return cast("Mapping[str, Any]", record)
    if is_dataclass(record) or isinstance(record, BaseModel):
        return {name: getattr(record, name) for name in names if hasattr(record, name)}
    return {}


def _text_of(given: Mapping[str, Any], result: Any) -> str:
    for name in _TEXTS:
        if (text := given.get(name)) is not None:
            if not isinstance(text, str):
                raise NotText(result)
            return whole_text(text)
    return ""


def _logprobs(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the log probabilities of a result in the form of chats, or as they are given."""
    logprobs: Any = given.get("logprobs")
    if not isinstance(logprobs, list):
        return None if logprobs is None else _as_dict(logprobs)
    tokens: list[Any] = logprobs  # pyright: ignore[reportUnknownVariableType]
    return {"content": [{"bytes": None, "top_logprobs": [], **_as_dict(one)} for one in tokens]}


def _as_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump()
    return {**(value if isinstance(value, Mapping) else vars(value))}
