"""The routes of the protocol: an endpoint as a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import orjson
from typing_extensions import override

from shoal.http.oip.inputs import Inputs
from shoal.http.oip.outputs import Outputs
from shoal.http.oip.tensor import not_fitting
from shoal.http.oip.tensor_request import (
    BINARY,
    HEADER_LENGTH,
    headers_of_call,
    read_tensors,
)
from shoal.http.requests.call import EndpointCall, EndpointCalls
from shoal.http.requests.exchange import JSON
from shoal.http.requests.problem import Problem, Refused
from shoal.http.requests.routing import Route
from shoal.observe.metrics import NO_ENDPOINT

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.oip.description import Descriptions
    from shoal.http.requests.exchange import Exchange
    from shoal.serving.backends.backend import Backend
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.endpoints.endpoint import Endpoint


class Model:
    """How code is called in the protocol; raises TypeError if tensors don't suit it."""

    def __init__(self, signature: Signature) -> None:
        self.inputs = Inputs(signature)
        self.outputs = Outputs(signature)


def model_of(batcher: MethodBatcher) -> Model:
    """Raises `Refused` if tensors don't suit the batcher's code."""
    try:
        return batcher.made_by(Model)
    except TypeError as error:
        detail = f"It can't be called with tensors: {' '.join(str(error).split())}."
        raise Refused(not_fitting(detail)) from None


class ProtocolRoute(Route):
    """A route with problems in the protocol's form: an object with an ``error``."""

    protocol: ClassVar = "oip"

    @override
    def problem(self, problem: Problem, request_id: str) -> tuple[bytes, bytes]:
        text = f"{problem.title}: {problem.detail}" if problem.detail else problem.title
        if "traceback" in problem.more:  # with debug=True only; its clients show the text alone
            text = f"{text}\n{''.join(problem.more['traceback'])}"
        return JSON, orjson.dumps({"error": text.encode("utf-8", "backslashreplace").decode()})


class Page(ProtocolRoute):
    """Responds with the status and the JSON that a function returns."""

    def __init__(
        self, tell: Callable[[Exchange], tuple[int, dict[str, Any]]], name: str = NO_ENDPOINT
    ) -> None:
        super().__init__(name)
        self._tell = tell

    @override
    async def answer(self, exchange: Exchange) -> None:
        status, told = self._tell(exchange)
        await exchange.answer(status, JSON, orjson.dumps(told))


def version_of(endpoint: Endpoint, version: str) -> Backend:
    """Returns the backend that is a version of a model."""
    backends = {one.tag: one for one in endpoint.backends()}
    if version not in backends:
        there = f"its versions are {', '.join(backends)}" if backends else "it has none yet"
        detail = f"The model {endpoint.name!r} has no version {version!r}; {there}."
        raise Refused(Problem(404, "not-found", "The path was not found", detail))
    return backends[version]


class InferRoute(ProtocolRoute):
    """Answers requests for inference with calls of one endpoint, a call for each row."""

    def __init__(
        self,
        endpoint: Endpoint,
        descriptions: Descriptions,
        options: HttpOptions,
        *,
        has_version: bool,
    ) -> None:
        super().__init__(endpoint.name)
        self._endpoint = endpoint
        self._calls = EndpointCalls(endpoint, options)
        self._descriptions = descriptions
        self._has_version = has_version

    @override
    async def answer(self, exchange: Exchange) -> None:
        with EndpointCall(self._calls, exchange) as call:
            body = await exchange.body()
            described, tensors = read_tensors(exchange, body, self._descriptions)
            version: str | None = None
            if self._has_version:
                version = version_of(self._endpoint, exchange.scope["path_params"]["version"]).tag
            found = await call.find(headers_of_call(exchange, described, version))
            if call.streams:
                detail = "It answers with a stream, which the protocol does not have."
                raise Refused(not_fitting(detail))
            model = model_of(found)
            if described.outputs is not None:
                model.outputs.check(described.outputs)
            results = await call.results(model.inputs.items(tensors))
            tag = found.batcher.name.partition("/")[0]  # a method's name may follow
            given: dict[str, Any] = {"model_name": self.name, "model_version": tag}
            if described.id is not None:
                given["id"] = described.id
            length, body = model.outputs.body(described, results, given)
            if length is None:
                await exchange.answer(200, JSON, body)
            else:
                await exchange.answer(200, BINARY, body, [(HEADER_LENGTH, b"%d" % length)])
