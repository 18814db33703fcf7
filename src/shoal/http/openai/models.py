"""The endpoints of an application as OpenAI's models, and the items that they take.

==========================================  =====================================================
the handler takes                           the item is
==========================================  =====================================================
``list[str]``, or no annotation             the prompt
a dataclass, a pydantic model, a TypedDict  a record of the prompt, and of the request's parameters
                                            for which it has fields
several parameters                          the same, by their names
==========================================  =====================================================

The prompt is the field ``prompt``, ``text`` or ``input``. A field ``messages`` takes the messages
of a chat unchanged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, get_args, get_origin

import orjson
from pydantic import BaseModel, ValidationError
from typing_extensions import is_typeddict, override

from shoal.batching.handlers.annotations import field_types
from shoal.http.json.payload import fields_adapter
from shoal.http.json.validation import adapter_of, as_written, finite_validator
from shoal.http.openai.errors import PREFIX, error_json, no_such_path, refused
from shoal.http.openai.messages import AnswerForms
from shoal.http.openai.text import count_words
from shoal.http.requests.call import EndpointCalls
from shoal.http.requests.dispatch import Route
from shoal.http.requests.exchange import JSON, Counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from inspect import Signature

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoint import Endpoint

    ChatTemplate = Callable[[Sequence[Mapping[str, Any]]], str]
    TokenCount = Callable[[str], int]

# The names of a field for the prompt, in order of preference.
PROMPT_NAMES: Final = ("prompt", "text", "input")

_TEXT: Final = (str, Any, Parameter.empty)


class ItemMaker:
    """Makes the items of one handler; raises TypeError if that takes no text."""

    def __init__(self, signature: Signature) -> None:
        parameters = list(signature.parameters.values())
        self._parameters = parameters if len(parameters) > 1 else None
        annotation: Any = parameters[0].annotation if len(parameters) == 1 else None
        self._parameter_type = annotation
        # An item is the prompt itself.
        self.is_plain = annotation in _TEXT
        self.fields: frozenset[str] = frozenset()
        self._prompt: str | None = None
        # It takes the messages of a chat, without a template.
        self.takes_messages = False
        if self.is_plain:
            return
        if get_origin(annotation) is Annotated and get_args(annotation)[0] is str:
            self._validator = finite_validator(adapter_of(annotation))
            return
        if self._parameters is None:
            self.fields = _fields_of(annotation)
        else:
            self.fields = frozenset(one.name for one in self._parameters)
        self._prompt = next((name for name in PROMPT_NAMES if name in self.fields), None)
        self.takes_messages = "messages" in self.fields
        if self._prompt is None and not self.takes_messages:
            raise TypeError(f"{signature} takes no text: a str, or a field 'prompt' or 'messages'")
        adapter = adapter_of(annotation) if self._parameters is None else fields_adapter(parameters)
        self._validator = finite_validator(adapter)

    def item(self, prompt: str | None, params: Mapping[str, Any]) -> Any:
        """Returns a tuple for several parameters; `prompt` is None if the item takes messages."""
        if self.is_plain:
            return prompt
        values: dict[str, Any] = {}
        try:
            if not self.fields:
                return self._validator.validate_python(prompt)
            values = {
                name: value
                for name in self.fields.intersection(params)
                if (value := params[name]) is not None and name != "messages"
            }
            messages = params.get("messages") if self.takes_messages else None
            if prompt is None or messages is not None:
                values["messages"] = messages
            elif self._prompt is None:
                raise refused("The model takes messages only: use /v1/chat/completions")
            else:
                values[self._prompt] = prompt
            made = self._validator.validate_python(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            loc = as_written(first["loc"], values if self.fields else prompt, first["type"])
            where = self._name_of(loc[0] if loc else None, params)
            where = ".".join([where, *(str(step) for step in loc[1:2])])
            raise refused(f"{where}: {first['msg']}", param=where) from None
        if self._parameters is None:
            return made
        return tuple(made.get(p.name, p.default) for p in self._parameters)

    def _name_of(self, field: int | str | None, params: Mapping[str, Any]) -> str:
        """Returns the name of the client's parameter for a field."""
        if field is None or field == self._prompt:
            return next((name for name in ("messages", "input") if name in params), "prompt")
        if field == "max_tokens" and params.get("max_completion_tokens") is not None:
            return "max_completion_tokens"
        return str(field)

    def limit(self, item: Any) -> int | None:
        """Returns the ``max_tokens`` of an item, which may be a default."""
        if "max_tokens" not in self.fields:
            return None
        limit: Any
        if self._parameters is not None:
            limit = item[[one.name for one in self._parameters].index("max_tokens")]
        elif is_typeddict(self._parameter_type):
            limit = item.get("max_tokens")
        else:
            limit = item.max_tokens
        return limit if type(limit) is int and limit > 0 else None


def _fields_of(annotation: Any) -> frozenset[str]:
    kind = get_origin(annotation) or annotation
    if is_typeddict(kind):
        return frozenset(field_types(kind))
    if not isinstance(kind, type):
        return frozenset()
    if is_dataclass(kind):
        return frozenset(one.name for one in fields(kind) if one.init)
    return frozenset(kind.model_fields) if issubclass(kind, BaseModel) else frozenset()


class OpenAIModel:
    """A model: an endpoint that takes text."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        options: HttpOptions,
        template: ChatTemplate,
        count: TokenCount | None,
    ) -> None:
        self.name = name
        self._template = template
        # None if each piece of a stream is one token.
        self.count = count
        self.prompt_count = count or count_words
        self.name_json = orjson.dumps(name)
        self.endpoint = endpoint
        self.calls = EndpointCalls(endpoint, options)
        self.counted = Counted(endpoint.name, OpenAIRoute.protocol)
        self.chats = AnswerForms(name, chat=True)
        self.completions = AnswerForms(name, chat=False)

    def maker(self, batcher: MethodBatcher) -> ItemMaker:
        """Raises `Refused` if the batcher's handler takes no text."""
        try:
            return batcher.made_by(ItemMaker)
        except TypeError:
            raise unknown(self.name) from None

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Returns the prompt of a chat, made by the user's template."""
        # Raises `Refused` if the template fails, or gives no text, which could fail a batch.
        try:
            prompt: Any = self._template(messages)
        except Exception as error:
            # Imported late: it loads an HTTP client.
            from starlette.exceptions import HTTPException

            if isinstance(error, HTTPException):
                raise
            raise refused(_text_of(error), param="messages") from None
        if not isinstance(prompt, str):
            kind = type(prompt).__name__
            raise refused(f"The chat template gave no text, but {kind}", status=500)
        return prompt

    @property
    def takes_text(self) -> bool:
        """Whether its code is known, and takes text."""
        if (known := self.endpoint.known()) is None:
            return False
        try:
            known[1].made_by(ItemMaker)
        except TypeError:
            return False
        return True


def unknown(name: str) -> Exception:
    return refused(
        f"The model {name!r} does not exist", param="model", code="model_not_found", status=404
    )


def _text_of(error: Exception) -> str:
    """Returns the text of an error of the user's template."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = ""
    if not text or isinstance(error, KeyError):  # its text is only the key
        return f"The chat template refused the messages: {f'{name}: {text}' if text else name}"
    return text


@dataclass
class Models:
    """The models of one controller."""

    controller: Controller
    options: HttpOptions
    # The endpoint of each model; None makes all endpoints that take text models.
    names: Mapping[str, str] | None
    template: ChatTemplate
    count: TokenCount | None
    _models: dict[str, OpenAIModel] = field(default_factory=dict[str, "OpenAIModel"])

    def of(self, name: str) -> OpenAIModel:
        """Raises `Refused` for an unknown model."""
        endpoints = self.controller.endpoints
        model = self._models.get(name)
        if model is not None and endpoints.get(model.endpoint.name) is model.endpoint:
            return model
        own_name = name if self.names is None else self.names.get(name)
        endpoint = None if own_name is None else endpoints.get(own_name)
        if endpoint is None:
            self._models.pop(name, None)
            raise unknown(name)
        model = OpenAIModel(name, endpoint, self.options, self.template, self.count)
        self._models[name] = model
        return model

    def __iter__(self) -> Iterator[OpenAIModel]:
        """Yields the models that take requests for texts now."""
        names = self.controller.endpoints if self.names is None else self.names
        for name in list(names):
            if self.names is None or self.names[name] in self.controller.endpoints:
                model = self.of(name)
                if model.takes_text:
                    yield model


class OpenAIRoute(Route):
    """A route with OpenAI's errors."""

    protocol: ClassVar = "openai"

    @override
    def problem(self, problem: Problem, request_id: str) -> tuple[bytes, bytes]:
        return JSON, error_json(problem)


class ModelsPage(OpenAIRoute):
    """Lists the models, or describes the one that the path names."""

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self._created = int(time.time())

    @override
    async def answer(self, exchange: Exchange) -> None:
        name = exchange.scope.get("path_params", {}).get("model")
        if name is None:
            data = [self._described(model) for model in self._models]
            body = orjson.dumps({"object": "list", "data": data})
        elif not name:
            raise no_such_path(f"{PREFIX}/models/") or unknown(name)
        else:
            model = self._models.of(name)
            if not model.takes_text:
                raise unknown(name)
            body = orjson.dumps(self._described(model))
        await exchange.answer(200, JSON, body)

    def _described(self, model: OpenAIModel) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "shoal",
        }
