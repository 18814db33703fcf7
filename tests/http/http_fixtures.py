"""An application whose answers are held, and a promise that every test here checks."""

import json
import logging
from typing import Any

import pytest
from held_app import Held, Steps

import shoal
from certificates import new_certificate
from shoal.server.access_log import LOGGER
from shoal.testing.asgi import Call


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def steps():
    return Steps()


@pytest.fixture
def app():
    return shoal.App()


@pytest.fixture
def openai():
    return shoal.App(protocols=["openai"])


@pytest.fixture
def oip():
    return shoal.App(protocols=["oip"])


@pytest.fixture
def held_app(app, held):
    """An application with one endpoint, whose handler is held."""
    app.endpoint("/held", name="held", max_batch_size=100)(held)
    return app


@pytest.fixture
def logged(caplog, capfd):
    """Returns the lines of the access log, of this process or of its workers, on its stderr."""
    caplog.set_level(logging.INFO, logger=LOGGER)

    def found() -> list[dict[str, Any]]:
        here = [record.getMessage() for record in caplog.records if record.name == LOGGER]
        written = [line for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
        return [json.loads(line) for line in here or written]

    return found


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return new_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch):
    """It is read in a thread, with a time limit on the event loop's clock, which is virtual."""
    monkeypatch.setattr("shoal.replicas.gpus._MODULE", "no_pynvml")


@pytest.fixture(autouse=True)
def nobody_listens_to_the_end(request, monkeypatch):
    """Who completes an answer does not watch the client then."""
    if request.node.get_closest_marker("soak") is not None:
        yield  # it measures what is kept
        return
    calls: list[Call] = []
    make = Call.__init__

    def make_and_note(call: Call, *args, **kwargs) -> None:
        calls.append(call)
        make(call, *args, **kwargs)

    monkeypatch.setattr(Call, "__init__", make_and_note)
    yield
    assert [call for call in calls if call.listened_to_the_end] == []
