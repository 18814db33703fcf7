"""`shoal serve --otel` exports to a real receiver of OTLP over HTTP; and the forms of the log."""

import json
import signal
import socket
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import ask, end_of

from observe.otlp_receiver import attributes, receiving

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
APP = """\
import logging
import shoal

app = shoal.App()
log = logging.getLogger("mine")


@app.endpoint("/double")
async def double(items: list[int]) -> list[int]:
    log.info("doubling", extra={"size": len(items), "items": [object()]})
    if 0 in items:
        raise ValueError("payload-4711")
    return [2 * item for item in items]

"""

IN_PROCESS = """\
import shoal

app = shoal.App()

def traced(items: list[int]) -> list[int]:
    from opentelemetry import trace

    with trace.get_tracer("mine").start_as_current_span("inside"):
        return items


app.endpoint("/traced", placement="process")(traced)
"""

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture
def serving_traced(terminal):
    (terminal.directory / "traced_app.py").write_text(APP)
    (terminal.directory / "in_process.py").write_text(IN_PROCESS)
    # As installed, even where the tests run on sources that are not.
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = terminal.directory / "site" / "entry-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: entry\nVersion: 0\n")
    lines = [f"[{group}]\n{name} = {at}" for group, of in found.items() for name, at in of.items()]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    for name in [name for name in terminal.environment if name.startswith("OTEL_")]:
        del terminal.environment[name]

    def serving_traced(*arguments, app="traced_app:app", **environment):
        terminal.environment.update(environment)
        return terminal.serving("serve", app, "--port", "0", *arguments)

    return serving_traced


@pytest.fixture
def exporting(serving_traced):
    """Runs a server that exports to a receiver; gives both, and the server's port."""

    @contextmanager
    def exporting(*arguments, app="traced_app:app", **environment):
        with receiving() as receiver:
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.url
            with serving_traced("--otel", *arguments, app=app, **environment) as (process, port):
                yield receiver, process, port

    return exporting


def test_spans_are_exported(exporting):
    environment = {
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
    }
    with exporting(**environment) as (receiver, process, port):
        assert ask(port, "/double", 2, traceparent=PARENT) == (200, 4)
        receiver.wait_for(lambda: receiver.named("double batch"))
        said = end_of(process, signal.SIGTERM)
    assert "Traceback" not in said
    (server,) = receiver.named("POST /double")
    (request,) = receiver.named("double")
    (batch,) = receiver.named("double batch")
    assert server.trace_id.hex() == request.trace_id.hex() == TRACE_ID
    assert server.parent_span_id.hex() == "b7ad6b7169203331"
    assert request.parent_span_id == server.span_id
    assert [event.name for event in request.events] == ["queue", "wait", "run"]
    assert [link.span_id for link in batch.links] == [request.span_id]
    assert attributes(server)["http.response.status_code"] == 200
    assert receiver.resources[0]["service.name"] == "shoal"
    assert receiver.resources[0]["deployment.environment"] == "test"


def test_code_in_a_process_exports_its_spans_too(exporting):
    with exporting(app="in_process:app") as (receiver, process, port):
        assert ask(port, "/traced", 2, traceparent=PARENT) == (200, 2)
        end_of(process, signal.SIGTERM)
        receiver.wait_for(lambda: receiver.named("inside") and receiver.named("traced batch"))
    (inside,) = receiver.named("inside")
    assert inside.trace_id.hex() == TRACE_ID
    assert inside.parent_span_id == receiver.named("traced batch")[0].span_id


def test_a_collector_that_is_gone_holds_nothing_up(serving_traced):
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        with serving_traced("--otel", OTEL_EXPORTER_OTLP_ENDPOINT=url) as (process, port):
            for number in range(20):
                assert ask(port, "/double", number + 1)[0] == 200
            end_of(process, signal.SIGTERM)


def test_a_sampler_of_the_environment_is_kept_to(exporting):
    with exporting(OTEL_TRACES_SAMPLER="parentbased_always_off") as (receiver, process, port):
        assert ask(port, "/double", 2)[0] == 200
        end_of(process, signal.SIGTERM)
    assert receiver.spans == []


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "must be otlp, console or none, not 'jaeger'"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "must be http/protobuf, not 'grpc'"),
    ],
)
def test_what_the_environment_can_not_have_is_said(terminal, serving_traced, environment, said):
    terminal.environment.update(environment)
    err = terminal.failed_here("serve", "traced_app:app", "--port", "0", "--otel", code=2)
    assert said in err


def test_without_the_extra_it_is_named_and_a_server_without_exports_runs(terminal, serving_traced):
    site = terminal.directory / "site" / "opentelemetry"
    site.mkdir()
    (site / "__init__.py").write_text("raise ModuleNotFoundError('x', name='opentelemetry')")
    code, _, err = terminal.run("serve", "traced_app:app", "--port", "0", "--otel", fresh=True)
    assert code == 1
    assert "--otel needs opentelemetry, which is not installed: pip install 'shoal[otel]'" in err
    with serving_traced() as (process, port):
        assert ask(port, "/double", 2, traceparent=PARENT) == (200, 4)
        end_of(process, signal.SIGTERM)


def test_other_applications_are_not_traced(terminal):
    other = "async def app(scope, receive, send):\n    pass\n"
    (terminal.directory / "other.py").write_text(other)
    err = terminal.failed_here("serve", "other:app", "--port", "0", "--otel", code=2)
    assert "leave out --otel" in err


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_failed_batch_is_one_line_of_the_log_without_payloads(exporting, form):
    with exporting("--access-log", "--log-format", form) as (_, process, port):
        status, _ = ask(port, "/double", 0, traceparent=PARENT, **{"X-Request-ID": "mine"})
        assert status == 500
        said = end_of(process, signal.SIGTERM)
    lines = said.splitlines()
    if form == "json":
        found = [json.loads(line) for line in lines if line.startswith("{")]
        (failed,) = [one for one in found if one.get("logger") == "shoal.batches"]
        assert failed["level"] == "ERROR"
        assert (failed["backend"], failed["size"], failed["failed"]) == ("double", 1, 1)
        assert failed["request_ids"] == ["mine"]
        assert failed["error"] == "ValueError"
        assert failed["trace_id"] == TRACE_ID
        (mine,) = [one for one in found if one.get("logger") == "mine"]
        assert (mine["size"], mine["trace_id"]) == (1, TRACE_ID)
        assert "items" not in mine
        (access,) = [one for one in found if "protocol" in one]
        assert (access["status"], access["trace_id"]) == (500, TRACE_ID)
    else:
        (failed,) = [line for line in lines if "shoal.batches" in line]
        assert "double: batch 1 failed: ValueError, 1 of 1 requests (mine)" in failed
        assert f"trace_id={TRACE_ID}" in failed
