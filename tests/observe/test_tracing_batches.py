"""Spans of batches and their requests, on both event loops, and in replicas elsewhere."""

from contextlib import suppress

import anyio
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode
from starlette.exceptions import HTTPException

import shoal
from handlers import echo
from observe import traced_code
from observe.spans import Spans, events, ids, linked, new_spans  # noqa: F401
from serving.scenes import deployed
from shoal.observe import instrument
from shoal.serving.controller.controller import Controller
from shoal.testing import settle

PLACEMENTS = pytest.mark.parametrize(
    "placement", ["task", "thread", pytest.param("process", marks=pytest.mark.one_loop)]
)


def traced(spans, handler, **options):
    batcher = shoal.Batcher(handler, **{"name": handler.__name__, **options})
    instrument(batcher, tracer_provider=spans.provider)
    return batcher


async def test_each_request_has_a_span_and_its_batch_one_that_is_linked_to_them(spans):
    async def double(items: list[int]) -> list[int]:
        with spans.tracer.start_as_current_span("inside"):
            await anyio.sleep(2)
        return [2 * item for item in items]

    batcher = traced(spans, double, max_batch_size=8, batch_wait_timeout_s=1)

    async def call_from(name, item):
        with spans.tracer.start_as_current_span(name):
            await call(item)

    async with batcher as call, anyio.create_task_group() as tasks:
        for name, item in [("first", 1), ("second", 2)]:
            tasks.start_soon(call_from, name, item)
            await settle()
    batch, inside = spans.one("double batch"), spans.one("inside")
    requests = spans.named("double")
    assert len(requests) == 2
    callers = {ids(spans.one(name)) for name in ("first", "second")}
    assert {ids(request.parent) for request in requests} == callers
    assert linked(batch) == {ids(request) for request in requests}
    assert all(linked(request) == {ids(batch)} for request in requests)
    assert ids(batch.parent) in {ids(request) for request in requests}
    assert ids(inside.parent) == ids(batch)
    assert [events(request) for request in requests] == [{"queue": 0, "wait": 0, "run": 1}] * 2
    assert (batch.end_time - batch.start_time) / 1e9 == pytest.approx(2)
    assert dict(batch.attributes) == {
        "shoal.backend": "double",
        "shoal.batch.id": 1,
        "shoal.batch.size": 2,
        "shoal.batch.dispatch_reason": "timer",
    }
    assert {request.attributes["shoal.request.outcome"] for request in requests} == {"finished"}


async def slow(items: list[int]) -> list[int]:
    await anyio.sleep(3)
    return items


async def test_the_time_behind_a_busy_slot_is_told_from_the_wait_for_others(spans):
    batcher = traced(spans, slow, max_batch_size=2, batch_wait_timeout_s=5)
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call.map, [1, 2])
        await settle()
        await anyio.sleep(1)
        tasks.start_soon(call, 3)
    (late,) = [one for one in spans.named("slow") if one.attributes["shoal.batch.id"] == 2]
    assert events(late) == {"queue": 0, "wait": 2, "run": 5}


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_runs_within_the_span_of_its_batch(spans, plain):
    seen = []

    def plainly(items: list[int]) -> list[int]:
        seen.append((trace.get_current_span().get_span_context(), baggage.get_all()))
        return items

    async def asynchronously(items: list[int]) -> list[int]:
        return plainly(items)

    batcher = traced(spans, plainly if plain else asynchronously, name="echo")
    before = context.get_current()
    token = context.attach(baggage.set_baggage("user", "one"))
    async with batcher as call:
        await call(1)
    context.detach(token)
    assert context.get_current() == before
    assert [(ids(span), baggage) for span, baggage in seen] == [(ids(spans.one("echo batch")), {})]


async def test_a_failure_is_noted_by_its_class_and_not_its_text(spans):
    async def fail(items: list[int]) -> list[object]:
        if 2 in items:
            raise anyio.BusyResourceError("secret")
        return [ValueError("secret") for _ in items]

    async with traced(spans, fail) as call:
        with pytest.raises(ValueError, match="secret"):
            await call(1)
        with pytest.raises(anyio.BusyResourceError):
            await call(2)
    found = spans.exporter.get_finished_spans()
    assert [span.attributes.get("error.type") for span in spans.named("fail")] == [
        "ValueError",
        "anyio.BusyResourceError",
    ]
    assert {span.status.status_code.name for span in found} == {"ERROR"}
    assert "secret" not in "".join(span.to_json() for span in found)


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_requests_that_join_an_open_batch_are_events_of_its_span(spans, fill):
    async def answer(request):
        await anyio.sleep(1)
        request.finish(request.item)

    async def handle(batch: shoal.OpenBatch[int, int]) -> None:
        async with anyio.create_task_group() as answering:
            async for request in batch:
                answering.start_soon(answer, request)

    options = {"batch_wait_timeout_s": 5} if fill == "open" else {}
    batcher = traced(spans, handle, fill=fill, max_batch_size=4, name="join", **options)
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call, 1)
        await settle()
        await anyio.sleep(0.5)
        tasks.start_soon(call, 2)
        await anyio.sleep(20 if fill == "continuous" else 1)
        if fill == "continuous":  # the batch was empty meanwhile
            assert len(spans.named("join batch")) == 1
            await call(3)
    first, *others = sorted(spans.named("join batch"), key=lambda span: span.start_time)
    assert [event.name for event in first.events] == ["join", "leave", "leave"]
    assert len(first.links) == 2
    assert len(spans.named("join")) == 2 + len(others)
    if fill == "continuous":
        assert (first.end_time - first.start_time) / 1e9 == pytest.approx(1.5)
        assert [len(span.links) for span in others] == [1]


async def test_what_is_not_sampled_makes_no_spans_and_nor_does_what_it_calls():
    spans = Spans(ParentBased(ALWAYS_OFF))
    seen = []

    async def watch(items: list[int]) -> list[int]:
        batch = shoal.current_batch()
        seen.append(trace.get_current_span().get_span_context().trace_flags.sampled)
        assert not int(batch.trace["traceparent"][-2:], 16) & 1
        return items

    async with traced(spans, watch) as call:
        await call(1)
        with spans.tracer.start_as_current_span("caller"):
            await call(2)
            with pytest.raises(shoal.errors.DeadlineExceeded):
                await call.options(timeout_s=0)(3)
    assert seen == [False, False]
    assert spans.exporter.get_finished_spans() == ()


async def test_a_batch_is_sampled_if_one_of_its_requests_is(spans):
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))

    batcher = traced(spans, echo, max_batch_size=2, batch_wait_timeout_s=None)

    async def call_unsampled():
        with trace.use_span(unsampled):
            await call(1)

    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call_unsampled)
        await settle()
        tasks.start_soon(call, 2)
    assert linked(spans.one("echo batch")) == {ids(spans.one("echo"))}


async def test_tracing_can_be_turned_off(spans):
    batcher = shoal.Batcher(echo, name="echo")
    tracing = instrument(batcher, tracer_provider=spans.provider)
    with pytest.raises(RuntimeError, match="instrumented already"):
        instrument(batcher)
    async with batcher as call:
        await call(1)
        tracing.uninstrument()
        tracing.uninstrument()
        await call(2)
    assert len(spans.named("echo")) == 1
    instrument(batcher, tracer_provider=spans.provider)


@pytest.mark.parametrize(
    ("why", "error"),
    [
        ("rejected", "shoal.errors.Overloaded"),
        ("shed", "shoal.errors.Overloaded"),
        ("expired", "shoal.errors.DeadlineExceeded"),
        ("cancelled", None),
    ],
)
async def test_a_request_that_no_batch_has_had_has_a_span(spans, why, error):
    async def leave_unserved(call):
        with (
            spans.tracer.start_as_current_span("caller"),
            anyio.move_on_after(2),
            suppress(shoal.errors.Overloaded, shoal.errors.DeadlineExceeded),
        ):
            await call.options(timeout_s=1 if why == "expired" else None)(2)

    options = {"overload": "shed_oldest"} if why == "shed" else {}
    most = int(why != "rejected")
    batcher = traced(spans, slow, max_batch_size=1, max_queued_requests=most, **options)
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(call, 1)
        await settle()
        tasks.start_soon(leave_unserved, call)
        await settle()
        if why == "shed":
            await call(3)
    (left,) = [one for one in spans.named("slow") if "shoal.batch.id" not in one.attributes]
    caller = spans.one("caller")
    assert ids(left.parent) == ids(caller)
    assert left.attributes["shoal.request.outcome"] == why
    assert left.attributes.get("error.type") == error
    assert left.status.status_code.name == ("UNSET" if error is None else "ERROR")
    assert events(left) == ({} if why == "rejected" else {"queue": 0})
    assert linked(left) == set()
    lasted_s = {"rejected": 0, "shed": 0, "expired": 1, "cancelled": 2}[why]
    assert (left.end_time - left.start_time) / 1e9 == pytest.approx(lasted_s, abs=1e-6)


class Model:
    @shoal.batch(max_batch_size=4)
    async def predict(self, items: list[int]) -> list[int]:
        return items


async def test_the_batchers_of_a_batched_function_are_traced_before_and_after_they_open(spans):
    @shoal.batch(max_batch_size=2)
    async def early(items: list[int]) -> list[int]:
        return items

    @shoal.batch
    async def late(items: list[int]) -> list[int]:
        return items

    first = instrument(early, tracer_provider=spans.provider)
    for _ in range(2):  # another batcher each time
        async with shoal.open_batchers():
            assert await early(1) == 1
            await late(1)
            second = instrument(late, tracer_provider=spans.provider)
            await late(2)
            second.uninstrument()
            await late(3)
    assert len(spans.ending("early batch")) == 2
    assert len(spans.ending("late batch")) == 2
    async with shoal.open_batchers(early):
        await early(1)
        assert len(spans.ending("early batch")) == 3
        first.uninstrument()
        await early(1)
    assert len(spans.ending("early")) == 3


async def test_the_batchers_of_all_instances_are_traced_and_told_apart(spans):
    go = anyio.Event()

    class Holding(Model):
        @shoal.batch(max_batch_size=4)
        async def hold(self, items: list[int]) -> list[int]:
            await go.wait()
            return items

    tracing = instrument(Holding.hold, tracer_provider=spans.provider)
    one, other = Holding(), Holding()
    async with shoal.open_batchers(), anyio.create_task_group() as tasks:
        for item, model in enumerate((one, other)):
            tasks.start_soon(model.hold, item)
        await settle()
        go.set()
    batches, requests = spans.ending("Holding.hold batch"), spans.ending("Holding.hold")
    assert len(batches) == len(requests) == 2
    assert sorted(map(sorted, map(linked, batches))) == sorted([ids(one)] for one in requests)
    tracing.uninstrument()


def test_a_batched_function_is_instrumented_once_and_no_method_of_one_instance():
    tracing = instrument(Model.predict)
    with pytest.raises(RuntimeError, match="instrumented already"):
        instrument(Model.predict)
    tracing.uninstrument()
    tracing.uninstrument()
    instrument(Model.predict).uninstrument()
    with pytest.raises(TypeError, match=r"instrument\(Model.predict\)"):
        instrument(Model().predict)
    with pytest.raises(TypeError, match=r"(?s)takes a shoal.Batcher, .*not <function ids"):
        instrument(ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("raises", [True, False])
async def test_a_declined_request_is_no_error_of_its_span_or_its_batch(spans, raises):
    async def refuse(items: list[int]) -> list[object]:
        if raises:
            raise HTTPException(404)
        return [HTTPException(404 if item else 503) for item in items]

    async with traced(spans, refuse, max_batch_size=1) as call:
        with pytest.raises(HTTPException):
            await call(1)
    request, batch = spans.one("refuse"), spans.ending("batch")[0]
    assert request.attributes["shoal.request.outcome"] == "declined"
    for span in (request, batch):
        assert span.status.status_code is not StatusCode.ERROR
        assert "error.type" not in span.attributes


async def test_a_request_that_goes_back_into_the_queue_has_a_span_of_each_batch(spans):
    errors = iter([shoal.RetryLater(1)])

    async def refuse_once(items: list[int]) -> list[int]:
        for error in errors:
            raise error
        return items

    async with traced(spans, refuse_once) as call:
        await call(1)
    outcomes = [one.attributes["shoal.request.outcome"] for one in spans.named("refuse_once")]
    assert outcomes == ["retried", "finished"]


@pytest.mark.real_time
@PLACEMENTS
@pytest.mark.parametrize("code", [traced_code.Plain, traced_code.Async])
async def test_code_in_a_replica_runs_within_the_span_of_its_batch(spans, placement, code):
    if placement == "thread" and code is traced_code.Async:
        pytest.skip("a replica in a thread has plain code")
    async with Controller() as client:
        instrument(client, tracer_provider=spans.provider)
        called = await deployed(client, "inner", code, config={"placement": placement})
        handle = await deployed(client, "outer", code, called, config={"placement": placement})
        with spans.tracer.start_as_current_span("caller"):
            outer, inner = await handle.call(1)
    assert tuple(outer) == ids(spans.one("outer batch"))
    assert tuple(inner) == ids(spans.one("inner batch"))
    assert ids(spans.one("inner").parent) == ids(spans.one("outer batch"))
    assert {span.context.trace_id for span in spans.exporter.get_finished_spans()} == {outer[0]}


@pytest.mark.real_time
async def test_the_calls_of_a_remote_handle_are_in_the_trace_of_their_caller(spans):
    async with shoal.start(http={"port": 0, "token": "t"}) as client:
        instrument(client, tracer_provider=spans.provider)
        await deployed(client, "inner", traced_code.Async)
        async with shoal.connect(client.url, token="t") as remote:
            handle = await remote.get_handle("inner")
            with spans.tracer.start_as_current_span("caller"):
                await handle.call(1)
    assert ids(spans.one("inner").parent) == ids(spans.one("caller"))


@pytest.mark.real_time
@PLACEMENTS
async def test_so_does_each_step_of_a_stream(spans, placement):
    async with Controller() as client:
        instrument(client, tracer_provider=spans.provider)
        config = {"placement": placement}
        handle = await deployed(client, "steps", traced_code.Plainly, config=config)
        async with handle.stream(1) as steps:
            found = [tuple(step) async for step in steps]
    assert found == [ids(spans.one("steps batch"))] * 2


@pytest.mark.real_time
async def test_without_tracing_nothing_is_sent(spans):
    async with Controller() as client:
        config = {"placement": "process"}
        handle = await deployed(client, "plain", traced_code.Plain, config=config)
        with spans.tracer.start_as_current_span("caller"):
            assert tuple(await handle.call(1)) == (0, 0)
