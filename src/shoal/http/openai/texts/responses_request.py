"""Requests to ``/v1/responses``, which become jobs as those of chats.

The server keeps no responses, so each request has the whole conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, cast

from pydantic import Field, with_config
from typing_extensions import TypedDict

from shoal.http.openai.errors import OPEN, Body, read_body, refused
from shoal.http.openai.items import TextMaker
from shoal.http.openai.texts.responses import ResponseJob
from shoal.http.openai.texts.text_job import Chat, Limit, Tools, check_limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.http.openai.models import OpenAIModels
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Refused

_OF_STATE: Final = ("previous_response_id", "conversation", "background", "prompt")
# They are read here, and are none of a model's.
_OWN: Final = frozenset(
    {
        *("input", "instructions", "max_output_tokens", "tools", "tool_choice", "text"),
        *("reasoning", "include", *_OF_STATE),
    }
)
_LOGPROBS: Final = "message.output_text.logprobs"


@with_config(OPEN)
class _TextConfig(TypedDict):
    format: NotRequired[dict[str, Any] | None]


@with_config(OPEN)
class _Request(Body):
    input: str | list[dict[str, Any]]
    instructions: NotRequired[str | None]
    max_output_tokens: NotRequired[Limit | None]
    stream: NotRequired[bool | None]
    temperature: NotRequired[Annotated[float, Field(ge=0, le=2)] | None]
    top_p: NotRequired[Annotated[float, Field(ge=0, le=1)] | None]
    tools: NotRequired[Tools | None]
    tool_choice: NotRequired[str | dict[str, Any] | None]
    text: NotRequired[_TextConfig | None]
    reasoning: NotRequired[dict[str, Any] | None]
    include: NotRequired[list[str] | None]


async def read_response_request(
    models: OpenAIModels, most_messages: int, exchange: Exchange, body: bytes
) -> ResponseJob:
    """Raises `Refused` if the body is malformed, or asks for what needs a state."""
    given = read_body(_Request, exchange, body)
    for name in _OF_STATE:
        if given.get(name):
            detail = f"The server keeps no responses, so there is no {name}: send all input"
            raise refused(detail, param=name, code="unsupported")
    messages = _messages(given["input"], given.get("instructions"))
    source = Chat(messages, most_messages, param="input")
    params = {name: one for name, one in given.items() if name not in _OWN}
    params["max_tokens"] = given.get("max_output_tokens")
    check_limit(params, param="max_output_tokens")
    tools = [_tool(nth, one) for nth, one in enumerate(given.get("tools") or ())]
    params["tools"] = tools or None
    params["tool_choice"] = _tool_choice(given.get("tool_choice"))
    text: Mapping[str, Any] = given.get("text") or {}
    params["response_format"] = _format(text.get("format"))
    params["verbosity"] = text.get("verbosity")
    reasoning: Mapping[str, Any] = given.get("reasoning") or {}
    params["reasoning_effort"] = reasoning.get("effort")
    if _LOGPROBS in (given.get("include") or ()):
        params["logprobs"] = True
    model = models.of(given.get("model"), TextMaker)
    return ResponseJob(exchange, model, params, source, given=given)


def _tool(nth: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _unsupported(f"tools.{nth}", tool.get("type"))
    function = {name: one for name, one in tool.items() if name != "type" and one is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function":
        raise _unsupported("tool_choice", choice.get("type"))
    return {"type": "function", "function": {"name": choice.get("name")}}


def _format(given: dict[str, Any] | None) -> Any:
    if given is None or given.get("type") != "json_schema":
        return given
    schema = {name: one for name, one in given.items() if name != "type" and one is not None}
    return {"type": "json_schema", "json_schema": schema}


def _messages(
    given: str | Sequence[Mapping[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
        return messages
    if not given:
        raise refused("There must be an input", param="input")
    for nth, item in enumerate(given):
        param = f"input.{nth}"
        match item.get("type", "message"):
            case "message":
                role = item.get("role")
                if not isinstance(role, str) or len(role) > 64:
                    raise refused("A message has a role", param=f"{param}.role")
                messages.append({"role": role, "content": _content(item.get("content"), param)})
            case "function_call":
                call = {"id": item.get("call_id"), "type": "function"}
                call["function"] = {name: item.get(name) for name in ("name", "arguments")}
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                content = _content(item.get("output"), param)
                call_id = item.get("call_id")
                messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case "reasoning":
                pass  # only the server that made it could continue it
            case "item_reference":
                name = str(item.get("id"))[:64]
                detail = f"The server keeps no responses, so there is no {name!r}: send the whole"
                detail += " item. In the AI SDK, set providerOptions: {openai: {store: false}}"
                raise refused(detail, param=param, code="unsupported")
            case kind:
                raise _unsupported(param, kind)
    return messages


def _content(content: Any, param: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused("The content of an item is a text, or a list of parts", param=param)
    parts: list[Any] = content  # pyright: ignore[reportUnknownVariableType]
    return [_part(part, param) for part in parts]


def _part(part: Any, param: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise refused("A part of an item is an object", param=param)
    given = {**cast("dict[str, Any]", part)}
    match given.pop("type", None):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": given.get("text")}
        case "refusal":
            return {"type": "text", "text": given.get("refusal")}
        case "input_image" if given.get("image_url"):
            image = {"url": given["image_url"], "detail": given.get("detail") or "auto"}
            return {"type": "image_url", "image_url": image}
        case "input_file":
            return {"type": "file", "file": given}
        case "input_audio":
            return {"type": "input_audio", **given}
        case kind:
            raise _unsupported(param, kind)


def _unsupported(param: str, kind: Any) -> Refused:
    detail = f"{param}: the type {str(kind)[:64]!r} is not supported here"
    return refused(detail, param=param, code="unsupported")
