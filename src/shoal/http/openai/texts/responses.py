"""``/v1/responses``: whole responses, and the events of streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shoal.http.openai.texts.chats import EventStream
from shoal.http.openai.texts.results import Piece
from shoal.http.openai.texts.text_job import TextJob
from shoal.http.requests.plain import encoded, one_line_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal.http.openai.items import Params
    from shoal.http.openai.texts.results import TextOutput
    from shoal.http.requests.problem import Problem

# Parameters of a request that its response has as well, and their defaults.
_REPEATED: Final[Mapping[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class _Kind(NamedTuple):
    """How an item of an output is made of its text."""

    prefix: str
    item: Mapping[str, Any]
    # The type of its part, and the key of the text in that or, without a part, in the item.
    part: str | None
    key: str
    events: str


_MESSAGE: Final = {"type": "message", "role": "assistant"}
_TEXT: Final = _Kind("msg", _MESSAGE, "output_text", "text", "response.output_text")
_REFUSAL: Final = _Kind("msg", _MESSAGE, "refusal", "refusal", "response.refusal")
_REASONING: Final = _Kind(
    *("rs", {"type": "reasoning", "summary": []}, "reasoning_text", "text"),
    "response.reasoning_text",
)
_CALL: Final = _Kind(
    *("fc", {"type": "function_call"}, None, "arguments", "response.function_call_arguments")
)


class _Item:
    def __init__(self, kind: _Kind, index: int, request_id: str, more: Mapping[str, Any]) -> None:
        self.kind = kind
        self._more = {"id": f"{kind.prefix}_{index}_{request_id}", **kind.item, **more}
        self._index = index
        self._place = {"item_id": self._more["id"], "output_index": index}
        if kind.part is not None:
            self._place["content_index"] = 0
        self._texts: list[str] = []
        self._logprobs: list[Any] = []

    def begun(self) -> Iterator[dict[str, Any]]:
        yield self._whole("response.output_item.added", self.body("in_progress"))
        if self.kind.part is not None:
            yield self._event("response.content_part.added", part=self._part(""))

    def add(self, text: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
        self._texts.append(text)
        self._logprobs += logprobs
        more = {"logprobs": logprobs} if self.kind is _TEXT else {}
        return self._event(f"{self.kind.events}.delta", delta=text, **more)

    def ended(self, status: str) -> Iterator[dict[str, Any]]:
        kind, text = self.kind, "".join(self._texts)
        more: dict[str, Any] = {"logprobs": self._logprobs} if kind is _TEXT else {}
        if kind is _CALL:
            more["name"] = self._more["name"]
        yield self._event(f"{kind.events}.done", **{kind.key: text}, **more)
        if kind.part is not None:
            yield self._event("response.content_part.done", part=self._part(text))
        yield self._whole("response.output_item.done", self.body(status))

    def body(self, status: str) -> dict[str, Any]:
        text = "".join(self._texts)
        content: dict[str, Any] = {self.kind.key: text}
        if self.kind.part is not None:
            content = {"content": [self._part(text)] if self._texts else []}
        return {**self._more, **content, "status": status}

    def _part(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": self.kind.part, self.kind.key: text}
        if self.kind is _TEXT:
            part |= {"annotations": [], "logprobs": self._logprobs if text else []}
        return part

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, **self._place, **more}

    def _whole(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"type": kind, "output_index": self._index, "item": body}


class _Items:
    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._items: list[_Item] = []
        self._calls: list[_Item] = []

    def add(self, piece: Piece) -> list[dict[str, Any]]:
        text, fields, logprobs = piece
        events: list[dict[str, Any]] = []
        reasoning = fields.get("reasoning_content") or fields.get("reasoning")
        if isinstance(reasoning, str):
            events += self._add(_REASONING, reasoning)
        if text or logprobs is not None:
            tokens: Sequence[Mapping[str, Any]] = (logprobs or {}).get("content") or ()
            unknown: dict[str, Any] = {"bytes": []}  # in the form of chats they may be None
            known = [{**one, **({} if one.get("bytes") else unknown)} for one in tokens]
            events += self._add(_TEXT, text, known)
        if isinstance(refusal := fields.get("refusal"), str):
            events += self._add(_REFUSAL, refusal)
        calls: Sequence[Mapping[str, Any]] = fields.get("tool_calls", ())
        for nth, call in enumerate(calls):
            function = call["function"]
            if "id" in call:
                more = {"call_id": call["id"], "name": function["name"]}
                self._calls.append(self._new(_CALL, more))
                events += self._calls[-1].begun()
            if function["arguments"]:
                index: int = call.get("index", nth)  # a whole call has none
                events.append(self._calls[index].add(function["arguments"]))
        return events

    def _add(
        self, kind: _Kind, text: str, logprobs: Sequence[Any] = ()
    ) -> Iterator[dict[str, Any]]:
        item = self._items[-1] if self._items else None
        if item is None or item.kind is not kind:
            item = self._new(kind, {})
            yield from item.begun()
        yield item.add(text, logprobs)

    def _new(self, kind: _Kind, more: Mapping[str, Any]) -> _Item:
        self._items.append(_Item(kind, len(self._items), self._request_id, more))
        return self._items[-1]

    def ended(self, status: str) -> list[dict[str, Any]]:
        events = [] if self._items else [*self._add(_TEXT, "")]
        for item in self._items:
            events += item.ended(status)
        return events

    def bodies(self, status: str) -> list[dict[str, Any]]:
        return [item.body(status) for item in self._items]


@dataclass(eq=False)
class ResponseJob(TextJob):
    # The parameters of the request as they were given.
    given: Params = field(default_factory=dict[str, Any])

    def form(self, output: TextOutput) -> _ResponseEvents:
        return _ResponseEvents(self, output)

    def whole(self, outputs: Sequence[TextOutput]) -> bytes:
        [output] = outputs
        items = _Items(self.exchange.request_id)
        items.add(Piece(output.text, output.fields, output.logprobs))
        items.ended("completed")
        return encoded(self.ended(output, items))

    def ended(self, output: TextOutput, items: _Items) -> dict[str, Any]:
        prompt_tokens = self.prompt_tokens
        tokens = output.end.tokens
        usage = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + tokens,
        }
        status = status_of(output)
        reason = _INCOMPLETE.get(output.end.reason or "")
        return self.response(
            status,
            output=items.bodies(status),
            usage=usage,
            incomplete_details=None if reason is None else {"reason": reason},
        )

    def response(self, status: str, **more: Any) -> dict[str, Any]:
        return {
            "id": f"resp_{self.exchange.request_id}",
            "status": status,
            "object": "response",
            "created_at": self.created,
            "model": self.model.name,
            "background": False,
            "previous_response_id": None,
            "store": False,
            **_REPEATED,
            **{n: one for n in _REPEATED if (one := self.given.get(n)) is not None},
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
            **more,
        }


def status_of(output: TextOutput) -> str:
    return "incomplete" if output.end.reason in _INCOMPLETE else "completed"


class _ResponseEvents(EventStream):
    def __init__(self, job: ResponseJob, output: TextOutput) -> None:
        self._job = job
        self._output = output
        self._items = _Items(job.exchange.request_id)
        self._count = 0
        self.runs_users_code = output.end.counts
        _ = job.prompt_tokens  # not first at the end of the stream, where it must not fail
        begun = job.response("in_progress")
        kinds = ("response.created", "response.in_progress")
        self.start = self._written({"type": kind, "response": begun} for kind in kinds)

    def item(self, value: Any) -> bytes:
        message = self._written(self._items.add(self._output.take(value)))
        self.is_over = self._output.end.reason is not None
        return message

    def end(self) -> bytes:
        output, events = self._output, list[dict[str, Any]]()
        if output.end.reason is None:
            events += self._items.add(Piece(output.rest(), {}, None))
        status = status_of(output)
        events += self._items.ended(status)
        response = self._job.ended(output, self._items)
        return self._written([*events, {"type": f"response.{status}", "response": response}])

    def error(self, problem: Problem, request_id: str) -> bytes:
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
        failure = {"code": code, "message": problem.text}
        output = self._items.bodies("incomplete")
        response = self._job.response("failed", error=failure, output=output)
        return self._written([{"type": "response.failed", "response": response}])

    def _written(self, events: Iterable[dict[str, Any]]) -> bytes:
        lines: list[bytes] = []
        for event in events:
            data = one_line_json(encoded({**event, "sequence_number": self._count}))
            lines.append(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data))
            self._count += 1
        return b"".join(lines)
