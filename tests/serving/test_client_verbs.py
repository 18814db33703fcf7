"""The table of verbs: each is declared once, and goes over HTTP as the table says."""

import inspect
from typing import Any

import httpx
import pytest

from shoal.errors import NotAllowed
from shoal.http.admin.api import AdminApi
from shoal.http.app.admin_mount import AdminMount
from shoal.serving.backend_config import BackendConfig
from shoal.serving.clients.protocol import VERBS, BlockingClient, Client
from shoal.serving.clients.remote_client import RemoteClient
from shoal.serving.clients.verbs import verb
from shoal.serving.controller.controller import Controller
from shoal.serving.imports import ImportRule
from shoal.status import Status

REQUESTS = {name: one for name, one in VERBS.items() if one is not None}
EACH_REQUEST = pytest.mark.parametrize("name", REQUESTS)

SAMPLES = {
    "tag": "b",
    "definition": "models:Model",
    "init_args": (1, "x"),
    "config": {"retries": 2},
    "init_kwargs": {"size": 3},
    "num_replicas": 4,
    "force": True,
    "name": "e",
    "backend": "b",
    "route": "/e",
    "methods": ("POST",),
    "endpoint": "e",
    "weights": {"b": 0.25, "c": 0.75},
    "proportion": 0.5,
    "compare": "models:alike",
}
"""An argument of each parameter that a verb has."""

RESULTS = {
    "get_backend_config": BackendConfig(retries=1),
    "list_backends": {"b": BackendConfig(retries=1)},
    "list_endpoints": {"e": {"route": None, "methods": ["GET"], "traffic": {}, "shadows": {}}},
    "status": Status(),
}
"""What the verbs that are not done with None return."""


class Recording:
    """A client each of whose verbs keeps its arguments, and returns its result."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        async def run(*args, **kwargs):
            self.asked.append((name, args, kwargs))
            return RESULTS.get(name)

        return run


def connected(client):
    api = AdminMount(AdminApi(client, token=None, allowed_modules=["models"]))
    return RemoteClient("http://localhost", transport=httpx.ASGITransport(app=api))


@pytest.mark.parametrize("name", VERBS)
def test_the_controller_has_each_verb_with_the_parameters_of_its_declaration(name):
    declared, its_own = getattr(Client, name), vars(Controller)[name]
    assert inspect.signature(its_own).parameters == inspect.signature(declared).parameters


def test_the_remote_client_has_of_its_own_only_what_the_table_cannot_say():
    assert VERBS.keys() & vars(RemoteClient).keys() == {"get_handle", "shutdown"}
    assert {"sync"} <= vars(RemoteClient).keys() & vars(Controller).keys()


@EACH_REQUEST
async def test_a_verb_reaches_the_server_with_its_arguments_and_returns_its_result(name):
    parameters = REQUESTS[name].signature.parameters
    bound = inspect.BoundArguments(
        REQUESTS[name].signature, {parameter: SAMPLES[parameter] for parameter in parameters}
    )
    server = Recording()
    client = connected(server)
    result = await getattr(client, name)(*bound.args, **bound.kwargs)
    await client.aclose()
    [(asked, args, kwargs)] = server.asked
    assert asked == name
    arrived = REQUESTS[name].signature.bind(*args, **kwargs).arguments
    assert {key: tuple(v) if isinstance(v, list) else v for key, v in arrived.items()} == (
        bound.arguments
    )
    assert result == RESULTS.get(name)
    assert type(result) is type(RESULTS.get(name))


async def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent():
    server = Recording()
    client = connected(server)
    for name, args, kwargs, said in [
        ("scale_backend", ("b",), {}, "missing 1 required positional argument: 'num_replicas'"),
        ("scale_backend", ("b",), {"replicas": 2}, "unexpected keyword argument 'replicas'"),
        ("scale_backend", ("b", 2), {"verb": 1}, "unexpected keyword argument 'verb'"),
        ("restart_backend", ("b",), {"fast": True}, "unexpected keyword argument 'fast'"),
        ("delete_backend", ("b", True), {}, "takes 2 positional arguments but 3 were given"),
    ]:
        with pytest.raises(TypeError, match=rf"{name}\(\) .*{said}"):
            await getattr(client, name)(*args, **kwargs)
    await client.aclose()
    assert server.asked == []


async def test_a_blocking_verb_of_a_controller_has_the_docstring_of_its_declaration():
    bridge: Any = None
    blocking = BlockingClient(Controller(), bridge)
    for name in VERBS.keys() - {"shutdown"}:
        assert getattr(blocking, name).__doc__ == getattr(Client, name).__doc__


def test_only_a_known_name_may_be_in_a_path():
    with pytest.raises(KeyError, match="file"):
        verb("GET", "files/{file}")


def test_import_paths_are_checked_by_the_rule():
    rule = ImportRule(["models"])
    for name, given in [
        ("create_backend", {"definition": "os:system"}),
        ("create_backend", {"config": {"batch_size_fn": "os:system"}}),
        ("update_backend_config", {"config": {"batch_size_fn": "os:system"}}),
        ("shadow_traffic", {"compare": "os:system"}),
    ]:
        with pytest.raises(NotAllowed):
            REQUESTS[name].arguments(given, rule)
