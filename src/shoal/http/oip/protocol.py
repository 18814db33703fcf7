"""The Open Inference Protocol, version 2, over HTTP: each endpoint is a model of the same name.

====================================  ======  ======================================================
``/v2``                               GET     the server
``/v2/health/live``                   GET     200 while the server answers at all
``/v2/health/ready``                  GET     200 while all models can take requests, else 503
``/v2/models/NAME``                   GET     the model: its versions, inputs and outputs
``/v2/models/NAME/ready``             GET     200 while it can take requests, else 503
``/v2/models/NAME/infer``             POST    inference
====================================  ======  ======================================================

A version of a model is a backend that the endpoint's traffic names, by its tag. A path with
``/versions/VERSION`` after the name is about that version. Without one the traffic chooses.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from shoal.core.histogram import NO_ENDPOINT
from shoal.http.oip.inputs import ModelInputs
from shoal.http.oip.outputs import ModelOutputs
from shoal.http.oip.request import (
    BINARY,
    HEADER_LENGTH,
    RequestHeads,
    headers_of_call,
    read_tensors,
)
from shoal.http.oip.tensor import not_fitting
from shoal.http.requests.call import EndpointCalls
from shoal.http.requests.dispatch import ProblemRoute, Route
from shoal.http.requests.exchange import JSON, Exchange
from shoal.http.requests.problem import Problem, Refused
from shoal.http.requests.protocol import HttpProtocol, ProtocolRoutes
from shoal.serving.endpoint import Endpoint, known_among
from shoal.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from inspect import Signature

    from shoal.asgi.http_options import HttpOptions
    from shoal.serving.backends.backend import Backend
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.controller.controller import Controller


class TensorModel:
    """How code is called in the protocol; raises TypeError if tensors don't suit it."""

    def __init__(self, signature: Signature) -> None:
        self.inputs = ModelInputs(signature)
        self.outputs = ModelOutputs(signature)


def model_of(batcher: MethodBatcher) -> TensorModel:
    """Raises `Refused` if tensors don't suit the batcher's code."""
    try:
        return batcher.codec_of(TensorModel)
    except TypeError as error:
        detail = f"It can't be called with tensors: {' '.join(str(error).split())}."
        raise not_fitting(detail) from None


class ProtocolRoute(Route):
    """A route with problems in the protocol's form: an object with an ``error``."""

    protocol: ClassVar = "oip"

    def problem(self, problem: Problem, request_id: str) -> tuple[bytes, bytes]:
        text = problem.text
        if "traceback" in problem.more:  # with debug=True only; its clients show the text alone
            text = f"{text}\n{''.join(problem.more['traceback'])}"
        return JSON, orjson.dumps({"error": text})


class MetadataPage(ProtocolRoute):
    def __init__(
        self, describe: Callable[[Exchange], tuple[int, dict[str, Any]]], name: str = NO_ENDPOINT
    ) -> None:
        super().__init__(name)
        self._describe = describe

    async def handle(self, exchange: Exchange) -> None:
        status, described = self._describe(exchange)
        await exchange.respond(status, JSON, orjson.dumps(described))


def version_of(endpoint: Endpoint, version: str) -> Backend:
    backends = endpoint.backends
    if version not in backends:
        there = f"its versions are {', '.join(backends)}" if backends else "it has none yet"
        detail = f"The model {endpoint.name!r} has no version {version!r}; {there}."
        raise Refused.of("not-found", detail)
    return backends[version]


class InferRoute(ProtocolRoute):
    """Answers requests for inference with calls of one endpoint, a call for each row."""

    def __init__(self, endpoint: Endpoint, heads: RequestHeads, options: HttpOptions) -> None:
        super().__init__(endpoint.name)
        self._endpoint = endpoint
        self._calls = EndpointCalls(endpoint, options, self.protocol)
        self._heads = heads

    async def handle(self, exchange: Exchange) -> None:
        exchange.count_under(self._calls)
        body = await exchange.body()
        described, tensors = read_tensors(exchange, body, self._heads)
        version = _version_in(exchange)
        if version is not None:
            version_of(self._endpoint, version)  # it refuses an unknown one
        call = await self._calls.call_for(exchange, headers_of_call(exchange, described, version))
        if call.batcher.streams:
            detail = "It answers with a stream, which the protocol does not have."
            raise not_fitting(detail)
        model = model_of(call.batcher)
        if described.outputs is not None:
            model.outputs.check(described.outputs)
        results = await call.results(model.inputs.items(tensors))
        tag = call.batcher.batcher.name.partition("/")[0]  # a method's name may follow
        response: dict[str, Any] = {"model_name": self.name, "model_version": tag}
        if described.id is not None:
            response["id"] = described.id
        length, body = model.outputs.body(described, results, response)
        if length is None:
            await exchange.respond(200, JSON, body)
        else:
            await exchange.respond(200, BINARY, body, [(HEADER_LENGTH, b"%d" % length)])


class OpenInference(HttpProtocol):
    """The Open Inference Protocol, version 2: ``App(protocols=["oip"])``."""

    title = "Open Inference Protocol"
    start = "/v2"

    def routes(self, controller: Controller, options: HttpOptions) -> ProtocolRoutes:
        return _Routes(controller, options)


class _Routes(ProtocolRoutes):
    def __init__(self, controller: Controller, options: HttpOptions) -> None:
        self._controller = controller
        self._options = options
        self._heads = RequestHeads(options.max_json_elements)

    def of(self, endpoint: Endpoint) -> Iterable[tuple[str, str, Route]]:
        name = endpoint.name
        for version in ("", "/versions/{version}"):
            path = f"/v2/models/{name}{version}"
            yield f"{path}/infer", "POST", InferRoute(endpoint, self._heads, self._options)
            yield path, "GET", MetadataPage(partial(self._metadata, endpoint), name)
            yield f"{path}/ready", "GET", MetadataPage(partial(self._model_ready, endpoint), name)

    def besides(self) -> Iterable[tuple[str, str, Route]]:
        yield "/v2", "GET", MetadataPage(self._server)
        yield "/v2/health/live", "GET", MetadataPage(lambda _: (200, {"live": True}))
        yield "/v2/health/ready", "GET", MetadataPage(self._ready)

    def elsewhere(self, path: str) -> Route | None:
        return _NotFound(_NOT_THERE) if path.startswith("/v2/") else None

    def _server(self, _: Exchange) -> tuple[int, dict[str, Any]]:
        extensions = ["binary_tensor_data"]
        return 200, {"name": "shoal", "version": __version__, "extensions": extensions}

    def _ready(self, _: Exchange) -> tuple[int, dict[str, Any]]:
        endpoints = self._controller.endpoints.values()
        ready = all(_are_ready(endpoint.backends.values()) for endpoint in endpoints)
        return 200 if ready else 503, {"ready": ready}

    def _model_ready(self, endpoint: Endpoint, exchange: Exchange) -> tuple[int, dict[str, Any]]:
        ready = _are_ready(_backends(endpoint, exchange))
        return 200 if ready else 503, {"name": endpoint.name, "ready": ready}

    def _metadata(self, endpoint: Endpoint, exchange: Exchange) -> tuple[int, dict[str, Any]]:
        for _, method_batcher in known_among(_backends(endpoint, exchange)):
            model = model_of(method_batcher)
            return 200, {
                "name": endpoint.name,
                "versions": [*endpoint.backends],
                "platform": "shoal",
                "inputs": model.inputs.metadata(),
                "outputs": model.outputs.metadata(),
            }
        detail = "None of its replicas has started yet."
        raise Refused(Problem(503, "unavailable", "The model is not ready", detail))


class _NotFound(ProblemRoute, ProtocolRoute):
    """Answers at unknown paths of the protocol."""


# Triton's extensions have something in their place.
_NOT_THERE: Final = Problem.of(
    "not-found",
    "There is no such model, version or path. The paths are /v2, /v2/health/live, "
    "/v2/health/ready, /v2/models/NAME, /v2/models/NAME/ready and /v2/models/NAME/infer. There are "
    "no extensions: /v2/models/NAME has inputs and outputs, /-/metrics statistics, and /-/routes "
    "all endpoints, which are the models.",
)


def _version_in(exchange: Exchange) -> str | None:
    version: str | None = exchange.scope.get("path_params", {}).get("version")
    return version


def _backends(endpoint: Endpoint, exchange: Exchange) -> Collection[Backend]:
    version = _version_in(exchange)
    return endpoint.backends.values() if version is None else [version_of(endpoint, version)]


def _are_ready(backends: Collection[Backend]) -> bool:
    return bool(backends) and all(one.state in ("ready", "degraded") for one in backends)
