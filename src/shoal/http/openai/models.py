"""The endpoints of an application as OpenAI's models."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
from typing_extensions import override

from shoal.http.openai.errors import PREFIX, error_json, no_such_path, refused
from shoal.http.openai.items import ItemMaker
from shoal.http.openai.messages import AnswerForms
from shoal.http.openai.text import count_words
from shoal.http.requests.call import EndpointCalls
from shoal.http.requests.exchange import JSON, Counted
from shoal.http.requests.routing import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoints.endpoint import Endpoint

    ChatTemplate = Callable[[Sequence[Mapping[str, Any]]], str]
    TokenCount = Callable[[str], int]


class Model:
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
            # Not at the start: it loads a client of HTTP.
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
        for backend in self.endpoint.backends():
            method_batcher = backend.method_batchers.get("__call__")
            if method_batcher is not None:
                try:
                    method_batcher.made_by(ItemMaker)
                except TypeError:
                    return False
                return True
        return False


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
    if not text or isinstance(error, KeyError):  # whose text is the key only
        return f"The chat template refused the messages: {f'{name}: {text}' if text else name}"
    return text


class Models:
    """The models of one controller."""

    # `names` has the endpoint of each model; None makes all endpoints that take text models.

    def __init__(
        self,
        controller: Controller,
        options: HttpOptions,
        names: Mapping[str, str] | None,
        template: ChatTemplate,
        count: TokenCount | None,
    ) -> None:
        self._template = template
        self._count = count
        self._controller = controller
        self._options = options
        self._names = names
        self._models: dict[str, Model] = {}

    def of(self, name: str) -> Model:
        """Raises `Refused` for an unknown model."""
        endpoints = self._controller.endpoints
        model = self._models.get(name)
        if model is not None and endpoints.get(model.endpoint.name) is model.endpoint:
            return model
        own_name = name if self._names is None else self._names.get(name)
        endpoint = None if own_name is None else endpoints.get(own_name)
        if endpoint is None:
            self._models.pop(name, None)
            raise unknown(name)
        model = Model(name, endpoint, self._options, self._template, self._count)
        self._models[name] = model
        return model

    def __iter__(self) -> Iterator[Model]:
        """Yields the models that take requests for texts now."""
        names = self._controller.endpoints if self._names is None else self._names
        for name in list(names):
            if self._names is None or self._names[name] in self._controller.endpoints:
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

    def _described(self, model: Model) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "shoal",
        }
