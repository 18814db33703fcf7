"""The endpoints of an application as OpenAI's models."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import orjson

from shoal.batching.handlers.annotations import read_signature
from shoal.http.openai.errors import PREFIX, error_json, no_such_path, refused
from shoal.http.openai.items import AudioMaker, ItemMaker, PairMaker, Params, Prompt, TextMaker
from shoal.http.requests.call import EndpointCalls
from shoal.http.requests.dispatch import Route
from shoal.http.requests.exchange import JSON, Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.problem import Problem, Refused
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoint import Endpoint

Maker = TypeVar("Maker", bound=ItemMaker)


@dataclass(frozen=True)
class Tokens:
    """The functions of the user that know the model's tokens, and its template of chats."""

    template: Callable[..., str]
    # None if each piece of a stream is one token.
    count: Callable[[str], int] | None
    decode: Callable[[Sequence[int]], str] | None

    @cached_property
    def template_fields(self) -> frozenset[str]:
        """The parameters of a request that the template takes, by their names."""
        return _keywords_of(self.template)


def _keywords_of(template: Callable[..., str]) -> frozenset[str]:
    try:
        _, *parameters = read_signature(template).parameters.values()
    except (TypeError, ValueError):  # of a builtin, or without a parameter
        return frozenset()
    by_name = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(one.name for one in parameters if one.kind in by_name)


def count_words(text: str) -> int:
    """Counts tokens, if no other function does."""
    return len(text.split())


class OpenAIModel:
    """A model: an endpoint that takes text, or what else the protocol has inputs of."""

    def __init__(self, name: str, endpoint: Endpoint, options: HttpOptions, tokens: Tokens) -> None:
        self.name = name
        self.tokens = tokens
        self.endpoint = endpoint
        self.calls = EndpointCalls(endpoint, options, OpenAIRoute.protocol)

    def maker(self, batcher: MethodBatcher, make: type[Maker]) -> Maker:
        """Raises `Refused` if the batcher's handler takes other items."""
        try:
            return batcher.codec_of(make)
        except TypeError:
            raise unknown(self.name, "serves no such requests") from None

    def tokens_in(self, prompt: Prompt) -> int:
        return (
            (self.tokens.count or count_words)(prompt) if isinstance(prompt, str) else len(prompt)
        )

    def fitting(self, maker: TextMaker, prompt: Prompt, param: str) -> Prompt:
        """Returns a prompt as the handler takes it: a text, or tokens."""
        if not maker.takes_prompts:
            raise refused("The model takes messages only: use /v1/chat/completions")
        if isinstance(prompt, str):
            if not maker.takes_text:
                raise refused("The model takes lists of tokens, and no text", param=param)
            return prompt
        if maker.takes_tokens:
            return prompt
        if self.tokens.decode is None:
            detail = "The model takes no tokens: send text"
            raise refused(detail, param=param, code="unsupported")
        try:
            text: Any = self.tokens.decode(prompt)
        except Exception as error:
            raise _refusal(error, "The tokens can't be decoded", param) from None
        return _text_from("decode_tokens", text)

    def prompt(self, messages: Sequence[Mapping[str, Any]], params: Params, param: str) -> str:
        # Raises `Refused` if the template fails, or gives no text, which could fail a batch.
        given = {name: params[name] for name in self.tokens.template_fields & params.keys()}
        try:
            prompt: Any = self.tokens.template(messages, **given)
        except Exception as error:
            raise _refusal(error, "The chat template refused the messages", param) from None
        return _text_from("The chat template", prompt)

    def known(self, make: type[Maker]) -> Maker | None:
        """Returns the maker of its items; None if its code is not known, or takes others."""
        if (known := self.endpoint.known()) is None:
            return None
        try:
            return known[1].codec_of(make)
        except TypeError:
            return None

    @property
    def is_listed(self) -> bool:
        makers = [self.known(make) for make in (TextMaker, PairMaker, AudioMaker)]
        return any(maker is not None and maker.is_listed for maker in makers)


def unknown(name: str, why: str = "does not exist") -> Exception:
    return refused(f"The model {name!r} {why}", param="model", code="model_not_found", status=404)


def _text_from(function: str, text: Any) -> str:
    if not isinstance(text, str):
        raise refused(f"{function} gave no text, but {type(text).__name__}", status=500)
    return text


def _refusal(error: Exception, what: str, param: str) -> Refused:
    """Returns the refusal for an error of the user's function; raises an `HTTPException` again."""
    # Imported late: it loads an HTTP client.
    from starlette.exceptions import HTTPException

    if isinstance(error, HTTPException):
        raise error
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = ""
    if not text or isinstance(error, KeyError):  # its text is only the key
        text = f"{what}: {f'{name}: {text}' if text else name}"
    return refused(text, param=param)


@dataclass
class OpenAIModels:
    controller: Controller
    options: HttpOptions
    # The endpoint of each model; None makes all endpoints that take text models.
    names: Mapping[str, str] | None
    tokens: Tokens
    _models: dict[str, OpenAIModel] = field(default_factory=dict[str, "OpenAIModel"])

    def of(self, name: str | None, make: type[ItemMaker]) -> OpenAIModel:
        """Returns a model; without a name the only one that takes such items."""
        if name is not None:
            return self._named(name)
        fitting = [model for model in self._all() if model.known(make)]
        if len(fitting) != 1:
            raise refused(f"There are {len(fitting)} models: send the name of one", param="model")
        return fitting[0]

    def _named(self, name: str) -> OpenAIModel:
        own_name = name if self.names is None else self.names.get(name, "")
        endpoint = self.controller.endpoints.get(own_name)
        if endpoint is None:
            self._models.pop(name, None)
            raise unknown(name)
        model = self._models.get(name)
        if model is None or model.endpoint is not endpoint:
            model = self._models[name] = OpenAIModel(name, endpoint, self.options, self.tokens)
        return model

    def __iter__(self) -> Iterator[OpenAIModel]:
        return (model for model in self._all() if model.is_listed)

    def _all(self) -> Iterator[OpenAIModel]:
        names = self.controller.endpoints if self.names is None else self.names
        for name in list(names):
            if self.names is None or self.names[name] in self.controller.endpoints:
                yield self._named(name)


class OpenAIRoute(Route):
    protocol: ClassVar = "openai"

    def problem(self, problem: Problem, request_id: str) -> tuple[bytes, bytes]:
        return JSON, error_json(problem)


class ModelsPage(OpenAIRoute):
    """Lists the models, or describes the one that the path names."""

    def __init__(self, models: OpenAIModels) -> None:
        super().__init__()
        self._models = models
        self._created = int(time.time())

    async def handle(self, exchange: Exchange) -> None:
        name = exchange.scope.get("path_params", {}).get("model")
        if name is None:
            data = [self._described(model) for model in self._models]
            body = orjson.dumps({"object": "list", "data": data})
        elif not name:
            raise no_such_path(f"{PREFIX}/models/") or unknown(name)
        else:
            model = self._models.of(name, TextMaker)
            if not model.is_listed:
                raise unknown(name)
            body = orjson.dumps(self._described(model))
        await exchange.respond(200, JSON, body)

    def _described(self, model: OpenAIModel) -> dict[str, Any]:
        return {"id": model.name, "object": "model", "created": self._created, "owned_by": "shoal"}
