"""A client without a controller: it keeps what it is told, and answers calls by plain functions."""

from typing import Any

import anyio

from shoal.errors import NoSuchName, ShutDown
from shoal.serving.backend_config import BackendConfig
from shoal.serving.names import DEFAULT_METHODS
from shoal.status import BackendStatus, EndpointStatus, ReplicaStatus, ShadowStatus, Status


class FakeStream:
    def __init__(self, results):
        self.results = results
        self.closed = anyio.Event()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc_info):
        self.closed.set()

    def __aiter__(self):
        return self

    async def __anext__(self):
        await anyio.lowlevel.checkpoint()
        result = next(self.results, None)
        if result is None:
            await anyio.sleep_forever()
        if isinstance(result, BaseException):
            raise result
        if result is ...:
            raise StopAsyncIteration
        return result

    def ready(self):
        return []

    async def aclose(self):
        self.closed.set()


class FakeHandle:
    """`answer` makes each call's result; it may be async."""

    def __init__(self, client, endpoint, chosen=None):
        self.client = client
        self.endpoint = endpoint
        self.chosen = chosen or {}

    async def call(self, *args, **kwargs):
        self.client.asked.append(("call", self.endpoint, args, kwargs, self.chosen))
        return await self.client.answer(*args, **kwargs)

    remote = call

    def stream(self, *args, **kwargs):
        self.client.asked.append(("stream", self.endpoint, args, kwargs, self.chosen))
        stream = FakeStream(iter(self.client.results))
        self.client.streams.append(stream)
        return stream

    def options(self, **chosen):
        return FakeHandle(self.client, self.endpoint, {**self.chosen, **chosen})


class FakeClient:
    """Keeps configs and endpoints; `fails` is raised by the next verb that changes something."""

    def __init__(self):
        self.backends: dict[str, BackendConfig] = {}
        self.endpoints: dict[str, dict[str, Any]] = {}
        self.asked: list[Any] = []
        self.streams: list[FakeStream] = []
        self.fails: Exception | None = None
        self.results: list[Any] = []
        self.is_shut_down = False

    async def answer(self, *args, **kwargs):
        return {"args": list(args), "kwargs": kwargs}

    def _asked(self, *what):
        if self.is_shut_down:
            raise ShutDown("this client was shut down")
        self.asked.append(what)
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure

    def _known(self, tag):
        if tag not in self.backends:
            raise NoSuchName(f"there is no backend {tag!r}; there are: {sorted(self.backends)}")

    async def create_backend(self, tag, definition, *init_args, config=None, init_kwargs=None):
        self._asked("create_backend", tag, definition, init_args, init_kwargs)
        self.backends[tag] = BackendConfig.of(config)

    async def update_backend_config(self, tag, config):
        self._asked("update_backend_config", tag)
        self._known(tag)
        self.backends[tag] = self.backends[tag].changed(config)

    async def get_backend_config(self, tag):
        self._known(tag)
        return self.backends[tag]

    async def list_backends(self):
        return dict(self.backends)

    async def scale_backend(self, tag, num_replicas):
        self._asked("scale_backend", tag, num_replicas)
        await self.update_backend_config(tag, {"num_replicas": num_replicas})

    async def restart_backend(self, tag):
        self._asked("restart_backend", tag)
        self._known(tag)

    async def delete_backend(self, tag, *, force=False):
        self._asked("delete_backend", tag, force)
        self._known(tag)
        del self.backends[tag]

    async def create_endpoint(self, name, *, backend, route=None, methods=DEFAULT_METHODS):
        self._asked("create_endpoint", name)
        self.endpoints[name] = {
            "route": route,
            "methods": list(methods),
            "traffic": {} if backend is None else {backend: 1.0},
            "shadows": {},
        }

    async def list_endpoints(self):
        self._asked("list_endpoints")
        return dict(self.endpoints)

    async def delete_endpoint(self, name):
        self._asked("delete_endpoint", name)
        del self.endpoints[name]

    async def set_traffic(self, endpoint, weights):
        self._asked("set_traffic", endpoint, dict(weights))
        self.endpoints[endpoint]["traffic"] = dict(weights)

    async def shadow_traffic(self, endpoint, backend, proportion, *, compare=None):
        self._asked("shadow_traffic", endpoint, backend, proportion, compare)

    async def get_handle(self, endpoint, missing_ok=False):
        self._asked("get_handle", endpoint)
        if missing_ok or endpoint in self.endpoints:
            return FakeHandle(self, endpoint)
        raise NoSuchName(f"there is no endpoint {endpoint!r}")

    async def status(self):
        self._asked("status")
        return full_status()

    async def shutdown(self):
        self.is_shut_down = True


def full_status():
    replica = ReplicaStatus(tag="a#0", state="ready", ongoing=1, batches=7, memory_bytes=None)
    backend = BackendStatus(
        tag="a",
        code="package.module:Model",
        placement="process",
        state="degraded",
        wanted=2,
        replicas=(replica,),
        queued=3,
        ongoing=1,
        requests=10,
        errors=1,
        starts=2,
        deaths=1,
        restarts=1,
        failure="killed by SIGKILL",
    )
    shadow = ShadowStatus(backend="b", proportion=0.25, compare=None, sent=4, latency_s=0.5)
    endpoint = EndpointStatus(
        name="e", route="/e", methods=("GET", "POST"), traffic={"a": 1.0}, shadows=(shadow,)
    )
    return Status(backends={"a": backend}, endpoints={"e": endpoint})
