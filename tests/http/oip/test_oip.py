"""The Open Inference Protocol: endpoints as models, rows as items, and its errors."""

import functools
import inspect
import json
import math
import struct
from dataclasses import dataclass
from typing import Any, Literal, Self

import anyio
import pytest
from held_app import counted, served, statistics
from pydantic import BaseModel
from typing_extensions import TypedDict

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.http.oip.request import RequestHeads
from shoal.http.oip.tensor import DATATYPES
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling

np = pytest.importorskip("numpy")
NDArray = pytest.importorskip("numpy.typing").NDArray
BF16 = pytest.importorskip("ml_dtypes").bfloat16
OPTIONS = {"max_batch_size": 8, "placement": "task"}


def in_a_task(handler: Any) -> Any:
    """A handler that runs in virtual time, without a thread."""
    if inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler):
        return handler

    @functools.wraps(handler)
    async def called(*columns: Any) -> Any:
        return handler(*columns)

    return called if handler.__annotations__ else shoal.accept_batch(called)


class Served:
    """An application of one endpoint, ``m``; notes its batches.

    Attributes:
        results: What it answers items with, by their numbers; None for the items.
    """

    def __init__(self, annotation: Any = int, handler: Any = None, **options: Any) -> None:
        self.batches: list[Any] = []
        self.results: Any = None
        self.app = shoal.App(protocols=["oip"], **options.pop("settings", {}))

        def same(x):
            self.batches.append(list(x))
            return x if self.results is None else [self.results[one] for one in x]

        if handler is None:
            handler = same
            same.__annotations__ = {"x": list[annotation], "return": list[Any]}
        self.app.endpoint("/m", name="m", **OPTIONS | options)(in_a_task(handler))

    async def __aenter__(self) -> Self:
        self._open = self.app.lifespan()
        await self._open.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._open.__aexit__(*exc_info)

    @property
    def items(self) -> list[Any]:
        return [item for batch in self.batches for item in batch]


@pytest.fixture(scope="module")
async def running(anyio_backend):
    async with Served(Any) as served:
        yield served


@pytest.fixture
def anything(running):
    running.batches.clear()
    running.results = None
    return running


def tensor(data: Any, shape: Any, datatype: str = "INT64", name: str = "x", **more: Any) -> Any:
    return {"name": name, "shape": shape, "datatype": datatype, "data": data, **more}


async def infer(app: Any, *inputs: Any, path: str = "/v2/models/m/infer", **more: Any) -> Any:
    return await ask(app, path, {"inputs": list(inputs), **more})


def binary(head: Any, *data: bytes, length: Any = None) -> dict[str, Any]:
    head = json.dumps(head).encode()
    name = "Inference-Header-Content-Length"
    return {
        "body": head + b"".join(data),
        "headers": [(name, str(len(head) if length is None else length))],
    }


def described(data: bytes, shape: Any, datatype: str, name: str = "x") -> dict[str, Any]:
    size = {"binary_data_size": len(data)}
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": size}


async def infer_body(app: Any, *item: Any, **how: Any) -> Any:
    return await ask(app, "/v2/models/m/infer", *item, **how)


async def infer_binary(app: Any, data: bytes, shape: Any, datatype: str, **more: Any) -> Any:
    head = {"inputs": [described(data, shape, datatype)], **more}
    return await infer_body(app, **binary(head, data))


def only(answer: Any) -> Any:
    """The data of the only output."""
    assert answer.status == 200, answer.body
    [output] = answer.json()["outputs"]
    return output["data"]


def error(answer: Any, status: int = 400) -> str:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    [(name, text)] = answer.json().items()
    assert name == "error"
    return text


async def test_the_server_and_its_models_tell_of_themselves():
    def model(
        ids: list[int], vector: list[NDArray[np.float32]], text: list[str]
    ) -> list[np.float16]: ...

    async with Served(handler=model) as served:
        told = (await ask(served.app, "/v2", method="GET")).json()
        assert (told["name"], told["extensions"]) == ("shoal", ["binary_tensor_data"])
        assert told["version"]
        assert (await ask(served.app, "/v2/health/live", method="GET")).json() == {"live": True}
        assert (await ask(served.app, "/v2/health/ready", method="GET")).json() == {"ready": True}
        ready = await ask(served.app, "/v2/models/m/ready", method="GET")
        assert ready.json() == {"name": "m", "ready": True}
        assert (await ask(served.app, "/v2/models/m", method="GET")).json() == {
            "name": "m",
            "versions": ["m"],
            "platform": "shoal",
            "inputs": [
                {"name": "ids", "datatype": "INT64", "shape": [-1]},
                {"name": "vector", "datatype": "FP32", "shape": [-1, -1]},
                {"name": "text", "datatype": "BYTES", "shape": [-1]},
            ],
            "outputs": [{"name": "output", "datatype": "FP16", "shape": [-1]}],
        }


class Pair(TypedDict):
    label: str
    scores: list[float]


@dataclass
class Point:
    at: tuple[float, float]
    of: Literal["a", "b"] = "a"


class Named(BaseModel):
    name: str
    size: int


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        (bool, [("x", "BOOL", [-1])]),
        (list[list[int]], [("x", "INT64", [-1, -1, -1])]),
        (float | None, [("x", "FP64", [-1])]),
        (bytes, [("x", "BYTES", [-1])]),
        (np.ndarray[tuple[int, Literal[3]], np.dtype[np.uint8]], [("x", "UINT8", [-1, -1, 3])]),
        (NDArray[np.bool_], [("x", "BOOL", [-1, -1])]),
        (NDArray[np.object_], [("x", "BYTES", [-1, -1])]),
        (np.ndarray[Any, np.dtype[BF16]], [("x", "BF16", [-1, -1])]),
        (np.ndarray, [("x", "FP32", [-1, -1])]),
        (Any, [("x", "FP32", [-1, -1])]),
        (Pair, [("label", "BYTES", [-1]), ("scores", "FP64", [-1, -1])]),
        (Point, [("at", "FP64", [-1, 2]), ("of", "BYTES", [-1])]),
        (Named, [("name", "BYTES", [-1]), ("size", "INT64", [-1])]),
    ],
)
async def test_annotations_say_what_tensors_there_are(annotation, told):
    def model(x: list[int]): ...

    model.__annotations__ = {"x": list[annotation], "return": list[annotation]}
    async with Served(handler=model) as served:
        metadata = (await ask(served.app, "/v2/models/m", method="GET")).json()
    inputs = [(one["name"], one["datatype"], one["shape"]) for one in metadata["inputs"]]
    assert inputs == told
    outputs = [(one["name"], one["datatype"], one["shape"]) for one in metadata["outputs"]]
    if len(told) == 1:
        told = [] if annotation is Any else [("output", *told[0][1:])]
    assert outputs == told


@pytest.fixture
def versioned():
    app = shoal.App(protocols=["oip"])

    async def old(x: list[int]) -> list[int]:
        return x

    async def new(x: list[int]) -> list[int]:
        return [-one for one in x]

    for tag, code in (("old", old), ("new", new), ("other", old)):
        app.backend(tag, code, placement="task")
    app.route("m", backend={"old": 1.0, "new": 0.0})
    app.route("held", backend={"old": 1.0})
    return app


async def test_a_version_is_a_backend_of_the_traffic(versioned):
    app = versioned
    async with app.lifespan():
        told = (await ask(app, "/v2/models/m/versions/new", method="GET")).json()
        assert told["versions"] == ["old", "new"]
        for version, data in (("old", [3]), ("new", [-3])):
            path = f"/v2/models/m/versions/{version}"
            assert (await ask(app, f"{path}/ready", method="GET")).status == 200
            answer = await infer(app, tensor([3], [1]), path=f"{path}/infer")
            assert answer.json()["model_version"] == version
            assert only(answer) == data


async def test_a_version_that_is_not_there_is_told_with_those_that_are(versioned):
    app = versioned
    async with app.lifespan():
        await app.controller.create_endpoint("later", backend=None)
        for model, there in (
            ("m", "its versions are old, new."),
            ("held", "its versions are old."),
            ("later", "it has none yet."),
        ):
            path = f"/v2/models/{model}/versions/other"
            for answer in (
                await ask(app, path, method="GET"),
                await ask(app, f"{path}/ready", method="GET"),
                await infer(app, tensor([3], [1]), path=f"{path}/infer"),
            ):
                assert f"The model {model!r} has no version 'other'; {there}" in error(answer, 404)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/v2/models/m/config"), ("GET", "/v2/models/m/versions/m/stats")),
        *(("POST", "/v2/repository/index"), ("POST", "/v2/models/m/generate")),
        *(("GET", "/v2/models"), ("GET", "/v2/"), ("GET", "/v2/logging")),
        *(("GET", "/v2/models/x"), ("POST", "/v2/models/x/infer")),
    ],
)
@pytest.mark.one_loop
async def test_what_is_not_there_is_told_with_what_is(anything, method, path):
    answer = await ask(anything.app, path, method=method)
    assert "There is no such model, version or path" in error(answer, 404)
    assert "The paths are /v2, /v2/health/live, /v2/health/ready" in error(answer, 404)
    assert "/v2/models/NAME has inputs and outputs, /-/metrics statistics" in error(answer, 404)


@pytest.mark.one_loop
async def test_a_body_in_another_encoding_is_told_the_right_one(anything):
    answer = await infer_body(anything.app, body='{"inputs": []}'.encode("utf-16"))
    assert "Send UTF-8 without a byte order mark." in error(answer)


async def test_a_model_without_traffic_is_not_ready(oip):
    async with oip.lifespan():
        await oip.controller.create_endpoint("m", backend=None)
        for path in ("/v2/health/ready", "/v2/models/m/ready"):
            answer = await ask(oip, path, method="GET")
            assert (answer.status, answer.json()["ready"]) == (503, False)
        answer = await ask(oip, "/v2/models/m", method="GET")
        assert answer.headers["retry-after"] == "1"
        assert "not ready" in error(answer, 503)


async def test_each_row_is_an_item_and_their_results_are_joined():
    async with Served(max_batch_size=4) as served:
        answer = await infer(served.app, tensor(list(range(10)), [10]), id="one")
    assert answer.json() == {
        "model_name": "m",
        "model_version": "m",
        "id": "one",
        "outputs": [
            {"name": "output", "datatype": "INT64", "shape": [10], "data": list(range(10))}
        ],
    }
    assert served.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_rows_of_several_requests_share_batches():
    served = Served(max_batch_size=4, batch_wait_timeout_s=60)
    one = Call(served.app, "/v2/models/m/infer", item={"inputs": [tensor([1, 2, 3], [3])]})
    two = Call(served.app, "/v2/models/m/infer", item={"inputs": [tensor([4], [1])]})
    async with served.app.lifespan(), calling(one, two):
        await one.returned.wait()
        await two.returned.wait()
    assert (only(one.answer), only(two.answer)) == ([1, 2, 3], [4])
    assert [sorted(batch) for batch in served.batches] == [[1, 2, 3, 4]]


@pytest.mark.parametrize("rows", [1, 5])
async def test_a_client_of_the_server_that_leaves_frees_all_places(held, rows, oip):
    oip.endpoint("/held", name="held", max_batch_size=2, max_concurrent_batches=1)(held)
    async with served(oip) as server:
        client, other = server.connect(), server.connect()
        client.ask("/v2/models/held/infer", {"inputs": [tensor([1] * rows, [rows])]})
        await settle()
        assert statistics(oip).running == min(rows, 2)
        client.leave()
        await settle()
        assert (server.shared.running, client.releases, client.answers) == (0, 1, [])
        assert (statistics(oip).queued, counted(oip)) == (0, (1, 0))
        held.go.set()
        other.ask("/v2/models/held/infer", {"inputs": [tensor([2] * rows, [rows])]})
        await settle()
        [(status, body)] = other.answers
        assert status == 200
        assert json.loads(body)["outputs"][0]["data"] == [2] * rows
    assert held.batches[0] == [1] * min(rows, 2)
    assert all(1 not in batch for batch in held.batches[1:])


async def test_more_rows_than_the_queue_has_places_are_taken_in_turns():
    rows = list(range(10))
    async with Served(max_batch_size=2, max_queued_requests=3, max_concurrent_batches=1) as served:
        assert only(await infer(served.app, tensor(rows, [10]))) == rows
        assert served.items == rows
        assert [len(batch) for batch in served.batches] == [2, 1, 2, 1, 2, 1, 1]


async def test_the_turns_of_a_request_have_one_deadline():
    async def slow(items: list[int]) -> list[int]:
        await anyio.sleep(1)
        return items

    async with Served(handler=slow, max_batch_size=1, max_queued_requests=1) as served:
        asked = tensor([1, 2, 3], [3])
        assert (await infer(served.app, asked, parameters={"timeout": 3_500_000})).status == 200
        assert (await infer(served.app, asked, parameters={"timeout": 2_500_000})).status == 504


async def test_as_many_rows_as_promised_are_taken_by_an_idle_server():
    async with Served(max_batch_size=512) as served:
        for rows in (1060, 2**14):
            answer = await infer(served.app, tensor([1] * rows, [rows], "INT8"))
            assert only(answer) == [1] * rows
        answer = await infer(served.app, tensor([1] * (2**14 + 1), [2**14 + 1], "INT8"))
    assert "retry-after" not in answer.headers
    assert error(answer).endswith("A request may have 1 to 16384 rows, but it has 16385.")


async def test_a_queue_without_room_for_all_rows_gets_none(held, oip):
    oip.endpoint("/m", name="m", max_batch_size=1, max_queued_requests=3)(held)
    async with oip.lifespan(), calling(Call(oip, "/m", item=1), Call(oip, "/m", item=2)):
        await settle()
        answer = await infer(oip, tensor([1, 2, 3], [3]))
        assert answer.headers["retry-after"] == "1"
        assert error(answer, 503).startswith("The endpoint is overloaded: ")
        held.go.set()
    assert not any(3 in batch for batch in held.batches)


async def test_a_tensor_without_the_dimension_of_the_rows_is_refused():
    for annotation in (np.ndarray, NDArray[np.float32], np.ndarray[tuple[int], Any]):
        async with Served(annotation) as served:
            answer = await infer(served.app, tensor([0.5] * 2048, [2048], "FP32"))
        assert "retry-after" not in answer.headers
        assert "(any,)" in error(answer) or "[2048]" in error(answer)
        assert served.batches == []


async def test_null_is_as_if_a_member_was_absent():
    nulls = {"id": None, "parameters": None, "outputs": None}
    options = dict.fromkeys(["priority", "timeout", "binary_data_output", "sequence_id"])
    of_output = dict.fromkeys(["binary_data", "classification", "shared_memory_region"])
    of_input = dict.fromkeys(["binary_data_size", "shared_memory_region"])
    async with Served() as served:
        for more in (nulls, {"parameters": options}):
            for parameters in (None, of_input):
                given = tensor([1], [1], parameters=parameters)
                answer = await infer(served.app, given, **more)
                assert only(answer) == [1]
                assert "id" not in answer.json()
        for parameters in (None, of_output):
            outputs = [{"name": "output", "parameters": parameters}]
            assert only(await infer(served.app, tensor([1], [1]), outputs=outputs)) == [1]
        given = {**described(bytes(8), [1], "INT64"), "data": None}
        assert only(await infer_body(served.app, **binary({"inputs": [given]}, bytes(8)))) == [0]


async def test_the_timeout_of_a_request_is_its_deadline_in_microseconds():
    ended_at = []

    async def slow(x: list[int]) -> list[int]:
        await anyio.sleep(10)
        return x

    async with Served(handler=slow) as served:
        for rows in (1, 3):
            for timeout, status in ((2_000_000, 504), (0, 200), (20_000_000, 200)):
                started = anyio.current_time()
                given = {"parameters": {"timeout": timeout}}
                answer = await infer(served.app, tensor([1] * rows, [rows]), **given)
                assert answer.status == status
                ended_at.append(round(anyio.current_time() - started))
    assert ended_at == [2, 10, 10] * 2


async def test_the_priority_of_a_request_is_that_of_its_rows():
    go = anyio.Event()
    order: list[int] = []

    async def held(x: list[int]) -> list[int]:
        order.extend(x)
        await go.wait()
        return x

    served = Served(handler=held, max_batch_size=2, priority_levels=3, max_concurrent_batches=1)
    calls = [
        Call(
            served.app,
            "/v2/models/m/infer",
            item={"inputs": [tensor([n, n], [2])], "parameters": {"priority": level}},
        )
        for n, level in ((1, 0), (3, 3), (2, 1))
    ]
    async with served.app.lifespan():
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.run)
                await settle()
            go.set()
        assert order == [1, 1, 2, 2, 3, 3]
        wrong = await infer(served.app, tensor([1], [1]), parameters={"priority": 4})
        assert "The priority must be a whole number from 1, the highest, to 3." in error(wrong)


async def test_rows_are_copied_to_shadows_and_counted_as_one_request():
    app, seen = shoal.App(protocols=["oip"]), []

    async def main(x: list[int]) -> list[int]:
        return x

    async def shadow(x: list[int]) -> list[int]:
        seen.extend(x)
        return [one + (one == 2) for one in x]

    for tag, code in (("m", main), ("shadow", shadow)):
        app.backend(tag, code, placement="task")
    app.route("m", backend="m")
    async with app.lifespan():
        await app.controller.shadow_traffic("m", "shadow", 1.0, compare=alike)
        assert only(await infer(app, tensor([1, 2, 3], [3]))) == [1, 2, 3]
        await settle()
        status = app.controller.status_now().endpoints["m"]
        assert (status.requests, status.errors) == (1, 0)
        assert (status.shadows[0].agreed, status.shadows[0].disagreed) == (2, 1)
    assert sorted(seen) == [1, 2, 3]


def alike(one: Any, other: Any) -> bool:
    return bool(one == other)


async def test_with_debug_alone_an_error_has_its_traceback():
    def model(x: list[int]) -> list[int]:
        raise RuntimeError("private")

    async with Served(handler=model, settings={"debug": True}) as served:
        text = error(await infer(served.app, tensor([1], [1])), 500)
        assert text.startswith("The call failed: ")
        assert "\nTraceback (most recent call last):\n" in text
        assert text.endswith("RuntimeError: private\n")
        assert "Traceback" not in error(await infer(served.app, tensor(["a"], [1])))


RANGES = {
    "BOOL": [True, False],
    **{f"INT{n}": [-(2 ** (n - 1)), 0, 2 ** (n - 1) - 1] for n in (8, 16, 32, 64)},
    **{f"UINT{n}": [0, 1, 2**n - 1] for n in (8, 16, 32, 64)},
    "FP16": [-65504.0, 0.5, 65504.0],
    "BF16": [-1.0, 0.5, 3.3895313892515355e38],
    "FP32": [-1.5, 0.5, 3.4028234663852886e38],
    "FP64": [-1.5, 0.1, 1.7976931348623157e308],
    "BYTES": ["", "a", "é"],
}


def raw(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        texts = [one.encode() for one in values]
        return b"".join(struct.pack("<I", len(one)) + one for one in texts)
    if datatype == "BF16":
        return b"".join(struct.pack("<f", one)[2:] for one in values)
    return struct.pack(f"<{len(values)}{DATATYPES[datatype].code}", *values)


@pytest.mark.one_loop
@pytest.mark.parametrize("datatype", RANGES)
async def test_each_datatype_is_read_in_both_forms(datatype):
    values = RANGES[datatype]
    rows = [len(values), 1]
    expected = [one.encode() for one in values] if datatype == "BYTES" else values
    for annotation in (Any, np.ndarray):
        async with Served(annotation) as served:
            for _ in "12":
                assert (await infer(served.app, tensor(values, rows, datatype))).status == 200
                data = raw(datatype, values)
                assert (await infer_binary(served.app, data, rows, datatype)).status == 200
        for item, value in zip(served.items, expected * 4, strict=True):
            if annotation is Any:
                assert item == [value]
                assert type(item[0]) is DATATYPES[datatype].element
            else:
                assert item.shape == (1,)
                assert item.tolist() == [value]
                assert item.flags.writeable
                if datatype not in ("BYTES", "BF16"):
                    assert item.dtype == np.dtype(DATATYPES[datatype].numpy_name)


@pytest.mark.one_loop
@pytest.mark.parametrize("datatype", RANGES)
async def test_elements_that_are_not_of_the_datatype_are_refused(anything, datatype):
    wrong: list[Any] = [None, {}, [[]], "text", 0.5, 1, True]
    kinds = DATATYPES[datatype].kinds
    wrong = [one for one in wrong if type(one) not in kinds]
    if float in kinds or int in kinds:
        largest = RANGES[datatype][-1]
        wrong += [-largest * 2 - 5, int(largest) * 2]
        if datatype == "FP64":
            wrong.remove(-math.inf)  # no JSON
    for one in wrong:
        answer = await infer(anything.app, tensor([one], [1], datatype))
        assert "'x'" in error(answer)
    assert anything.items == []


async def test_data_may_be_nested_as_its_shape_says():
    nested = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    async with Served(list[list[int]]) as served:
        await infer(served.app, tensor(list(range(1, 9)), [2, 2, 2]))
        await infer(served.app, tensor(nested, [2, 2, 2]))
        assert served.items == nested * 2
        for data in (nested[:1], [nested], [[1, 2], [3, 4]], [[[1, 2], [3]]] * 2, [1, [2]], []):
            assert (await infer(served.app, tensor(data, [2, 2, 2]))).status == 400
        assert (await infer(served.app, tensor([[], []], [2, 0, 2]))).status == 200


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("annotation", "given", "shape", "datatype", "items"),
    [
        (int, [3], [1, 1], "INT64", [3]),
        (int, [3.0, 4.0], [2], "FP32", [3, 4]),
        (float, [3], [1], "INT8", [3.0]),
        (str, ["é"], [1, 1, 1], "BYTES", ["é"]),
        (bytes, ["é"], [1], "BYTES", ["é".encode()]),
        (list[str], ["a", "b"], [1, 2], "BYTES", [["a", "b"]]),
        (tuple[float, float], [1, 2], [1, 2], "FP64", [(1.0, 2.0)]),
        (Literal["a"], ["a"], [1], "BYTES", None),
        (set[int], [1, 1], [1, 2], "INT64", [{1}]),
        (int, [1, 2], [1, 2], "INT64", None),
        (int, [0.5], [1], "FP32", None),
        (list[float], [1.0], [1], "FP32", None),
        (str, [1], [1], "INT64", None),
        (Literal["b"], ["a"], [1], "BYTES", None),
        (NDArray[np.float32], ["a"], [1], "BYTES", None),
        (NDArray[np.int8], [300], [1, 1], "INT64", None),
        (NDArray[np.int8], [0.5], [1, 1], "FP64", None),
    ],
)
async def test_rows_are_made_and_checked_by_annotation(annotation, given, shape, datatype, items):
    async with Served(annotation) as served:
        answer = await infer(served.app, tensor(given, shape, datatype))
    if items is None and annotation != Literal["a"]:
        assert "does not fit the model" in error(answer)
        assert served.items == []
    elif items is not None:
        assert served.items == items
        assert list(map(type, served.items)) == list(map(type, items))


async def test_floats_in_binary_data_may_be_infinite_or_no_numbers():
    async with Served(float) as served:
        data = struct.pack("<2d", math.inf, math.nan)
        answer = await infer_binary(served.app, data, [2], "FP64")
    assert only(answer) == [None, None]  # JSON has no such numbers
    assert (served.items[0], math.isnan(served.items[1])) == (math.inf, True)


async def test_an_array_has_the_dtype_of_its_annotation():
    async with Served(NDArray[np.float32]) as served:
        await infer(served.app, tensor([1, 2], [1, 2], "INT64"))
        await infer_binary(served.app, struct.pack("<2d", 1, 2), [1, 2], "FP64")
    assert [(item.dtype.name, item.tolist()) for item in served.items] == [
        *[("float32", [1.0, 2.0])] * 2
    ]


async def test_several_parameters_are_inputs_by_name():
    def model(a: list[float], b: list[str], c: list[int] = [7]) -> list[str]:  # noqa: B006
        return [f"{x} {y} {z}" for x, y, z in zip(a, b, c, strict=True)]

    a, b = tensor([1.5, 2.5], [2], "FP32", "a"), tensor(["x", "y"], [2, 1], "BYTES", "b")
    c = tensor([8, 9], [2], "INT8", "c")
    async with Served(handler=model) as served:
        assert only(await infer(served.app, b, a, c)) == ["1.5 x 8", "2.5 y 9"]
        for inputs, text in (
            ([a], "'b' is missing"),
            ([a, b, {**a, "name": "d"}], "there is no 'd'"),
            (
                [a, tensor(["x"], [1], "BYTES", "b")],
                "the number of rows, differs among inputs: 'a' has 2, 'b' has 1.",
            ),
            ([a, a, b], "'a' is there twice"),
        ):
            answer = await infer(served.app, *inputs)
            assert text in error(answer)


async def test_a_parameter_that_is_left_out_has_its_default(oip):
    @oip.endpoint("/m", name="m", placement="task")
    async def scaled(x: int, by: int = 10) -> int:
        return x * by

    async with oip.lifespan():
        assert only(await infer(oip, tensor([1, 2], [2]))) == [10, 20]


async def test_the_fields_of_a_record_are_inputs_by_name():
    name, size = tensor(["a", "b"], [2, 1], "BYTES", "name"), tensor([1, 2], [2], name="size")
    async with Served(Named) as served:
        answer = await infer(served.app, name, size)
        assert served.items == [Named(name="a", size=1), Named(name="b", size=2)]
        outputs = {one["name"]: one["data"] for one in answer.json()["outputs"]}
        assert outputs == {"name": ["a", "b"], "size": [1, 2]}
        assert (await infer(served.app, name)).status == 400


async def test_code_without_parameters_has_one_row():
    async with Served(handler=lambda: [5]) as served:
        assert only(await infer(served.app)) == [5]


async def test_what_takes_no_tensors_is_refused():
    from starlette.requests import Request

    async def streamed(x: list[int]):
        yield x

    async with Served(handler=streamed) as served:
        answer = await infer(served.app, tensor([1], [1]))
        assert "stream" in error(answer)
    async with Served(Request) as served:
        answer = await infer(served.app, tensor([1], [1]))
        assert "can't be called with tensors" in error(answer)
        assert (await ask(served.app, "/v2/models/m", method="GET")).status == 400


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("results", "datatype", "shape", "data"),
    [
        ([1, 2], "INT64", [2], [1, 2]),
        ([2**63, 0], "UINT64", [2], [2**63, 0]),
        ([1, 0.5], "FP64", [2], [1.0, 0.5]),
        ([True, False], "BOOL", [2], [True, False]),
        ([True, 2], "INT64", [2], [1, 2]),
        (["a", b"b"], "BYTES", [2], ["a", "b"]),
        ([[[1], [2]], ((3,), (4,))], "INT64", [2, 2, 1], [1, 2, 3, 4]),
        ([[], []], "FP64", [2, 0], []),
        ([np.float32(1), np.float32(2)], "FP32", [2], [1.0, 2.0]),
        ([np.ones((1, 2), "f2")] * 2, "FP16", [2, 1, 2], [1.0] * 4),
        ([np.array([1], ">i4")] * 2, "INT32", [2, 1], [1, 1]),
        ([np.array(["a"]), np.array(["b"])], "BYTES", [2, 1], ["a", "b"]),
        ([[np.int8(1)], [np.int8(2)]], "INT64", [2, 1], [1, 2]),
        (np.array([[1, 0.1], [-2.5, 2]], BF16), "BF16", [2, 2], [1.0, 0.10009765625, -2.5, 2.0]),
        (np.array([[1, 2], [3, 4]], BF16).T, "BF16", [2, 2], [1.0, 3.0, 2.0, 4.0]),
        (np.ones((2, 1, 3, 1), BF16), "BF16", [2, 1, 3, 1], [1.0] * 6),
        (np.zeros((2, 0), BF16), "BF16", [2, 0], []),
        ([BF16(0.5), BF16(-1)], "BF16", [2], [0.5, -1.0]),
        ([np.array(0.5, BF16), np.array(-1, BF16)], "BF16", [2], [0.5, -1.0]),
    ],
)
async def test_results_are_joined_to_tensors(anything, results, datatype, shape, data):
    anything.results = results
    answer = await infer(anything.app, tensor([0, 1], [2]))
    assert answer.status == 200, answer.body
    assert answer.json()["outputs"] == [
        {"name": "output", "datatype": datatype, "shape": shape, "data": data}
    ]
    all_binary = {"parameters": {"binary_data_output": True}}
    answer = await infer(anything.app, tensor([0, 1], [2]), **all_binary)
    length = int(answer.headers["inference-header-content-length"])
    assert answer.headers["content-type"] == "application/octet-stream"
    size = len(answer.body) - length
    assert json.loads(answer.body[:length])["outputs"] == [
        {
            "name": "output",
            "datatype": datatype,
            "shape": shape,
            "parameters": {"binary_data_size": size},
        }
    ]
    assert answer.body[length:] == raw(datatype, data)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "results",
    [
        [[1], [1, 2]],
        [1, "a"],
        [None, None],
        [2**70, 1],
        [np.ones(1), np.ones(2)],
        [np.ones(1, complex)] * 2,
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, 1],
        [1, {"a": 1}],
        [{1: 1}, {1: 1}],
        [[{}], [{}]],
        [np.array([None])] * 2,
    ],
)
async def test_results_that_are_no_tensor_are_an_error_of_the_model(anything, results):
    anything.results = results
    assert (await infer(anything.app, tensor([0, 1], [2]))).status == 500


async def test_the_wanted_outputs_are_sent_in_their_forms():
    called: list[int] = []

    def model(x: list[int]) -> list[Pair]:
        called.extend(x)
        return [{"label": str(one), "scores": [one, 1]} for one in x]

    async with Served(handler=model) as served:
        answer = await infer(
            served.app,
            tensor([1, 2], [2]),
            outputs=[{"name": "scores", "parameters": {"binary_data": True}}, {"name": "label"}],
        )
        length = int(answer.headers["inference-header-content-length"])
        scores, label = json.loads(answer.body[:length])["outputs"]
        assert label == {"name": "label", "datatype": "BYTES", "shape": [2], "data": ["1", "2"]}
        assert scores["parameters"] == {"binary_data_size": 32}
        # They are floats by the annotation, whatever the model returns.
        assert answer.body[length:] == struct.pack("<4d", 1, 1, 2, 1)
        answer = await infer(
            served.app,
            tensor([1], [1]),
            parameters={"binary_data_output": True},
            outputs=[{"name": "label", "parameters": {"binary_data": False}}],
        )
        assert only(answer) == ["1"]
        called.clear()
        answer = await infer(served.app, tensor([1], [1]), outputs=[{"name": "nothing"}])
        assert "there is no 'nothing'" in error(answer)
        assert not called


@pytest.mark.one_loop
@pytest.mark.parametrize("dtype", [np.float32, BF16])
async def test_numbers_that_are_not_finite_are_in_binary_data_only(anything, dtype):
    anything.results = results = np.array([[np.inf, -np.inf], [np.nan, 1]], dtype)
    rows = tensor([0, 1], [2])
    assert only(await infer(anything.app, rows)) == [None, None, None, 1.0]
    answer = await infer(anything.app, rows, parameters={"binary_data_output": True})
    assert answer.body.endswith(results.tobytes())


async def test_bytes_that_are_no_text_are_sent_as_binary_data_only(anything):
    anything.results = [b"\xff"]
    answer = await infer(anything.app, tensor([0], [1]))
    assert "binary" in error(answer)
    answer = await infer(anything.app, tensor([0], [1]), parameters={"binary_data_output": True})
    assert answer.body.endswith(b"\x01\x00\x00\x00\xff")


X = tensor([1], [1])


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"inputs": [',
        b'{"inputs": 3}',
        b'{"inputs": [NaN]}',
        *[
            b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[%b]}]}' % number
            for number in (b"9223372036854775808", b"18446744073709551616", b"1e400", b"NaN")
        ],
        b"[" * 100_000,
        b'{"inputs": [], "id": "\xff"}',
        *[
            json.dumps({"inputs": [], **part} if isinstance(part, dict) else {"inputs": part})
            for part in (
                {"id": 3},
                {"id": "x" * 2000},
                {"parameters": []},
                {"parameters": {"priority": "high"}},
                {"parameters": {"priority": -1}},
                {"parameters": {"timeout": 2**70}},
                {"parameters": {"timeout": 0.5}},
                {"parameters": {"binary_data_output": 1}},
                {"parameters": {"sequence_id": 3}},
                {"outputs": 3},
                {"outputs": [{}]},
                {"inputs": [X], "outputs": [{"name": "x", "parameters": {"classification": 1}}]},
                {"outputs": [{"name": "x"}] * 300},
                [3],
                [{}],
                [X] * 300,
                [X, X],
                [tensor([1], [1], name="x" * 300)],
                [tensor([1], [1], name="")],
                [tensor([1], [1], "INT128")],
                [tensor([1], [1], "int64")],
                [tensor([1], [])],
                [tensor([1], [0])],
                [tensor([1], [-1])],
                [tensor([1], [True])],
                [tensor([1], [1.0])],
                [tensor([1], ["1"])],
                [tensor([1], [2])],
                [tensor([1], [2**62, 4])],
                [tensor([1], [2**63])],
                [tensor([1], [2**32, 2**32, 1])],
                [tensor([1], [1] * 33)],
                [tensor([], [2**40, 0])],
                [tensor([], [1, 2**40, 0])],
                [tensor([], [0, 5])],
                [tensor({}, [1])],
                [tensor(1, [1])],
                [{"name": "x", "shape": [1], "datatype": "INT64"}],
                [{**X, "parameters": {"binary_data_size": 8}}],
                [{**X, "parameters": {"shared_memory_region": "r"}}],
                [tensor([1] * 20_000, [20_000])],
            )
        ],
    ],
)
async def test_a_malformed_request_is_refused(anything, body):
    body = body.encode() if isinstance(body, str) else body
    answer = await infer_body(anything.app, body=body)
    assert len(error(answer, 413 if body.startswith(b"[[") else 400)) < 1000
    assert anything.items == []


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("shape", "datatype", "data", "text"),
    [
        ([1], "INT64", b"", "0 bytes, but 1 elements of INT64 have 8"),
        ([1], "INT64", bytes(7), "7 bytes, but"),
        ([1], "INT64", bytes(9), "9 bytes, but"),
        ([2**60], "INT64", bytes(8), "8 bytes, but"),
        ([2**61, 8], "INT64", b"", "0 bytes, but"),
        ([1], "BYTES", b"", "longer than its data"),
        ([1], "BYTES", b"\1\0\0", "longer than its data"),
        ([1], "BYTES", b"\2\0\0\0a", "longer than its data"),
        ([1], "BYTES", b"\xff\xff\xff\xff", "longer than its data"),
        ([1], "BYTES", b"\1\0\0\0ab", "1 bytes after its last element"),
        ([2], "BYTES", b"\1\0\0\0a\0\0\0", "longer than its data"),
        ([2**60], "BYTES", bytes(8), "more than 262144 elements"),
        ([1, 2**17] + [1] * 8, "UINT8", bytes(2**17), "lists"),
        ([1, 2**17, 3], "UINT8", bytes(3 * 2**17), "more than 262144 elements"),
    ],
)
async def test_binary_data_of_another_shape_is_refused(anything, shape, datatype, data, text):
    answer = await infer_binary(anything.app, data, shape, datatype)
    assert text in error(answer)
    assert len(error(answer)) < 1000
    assert anything.items == []


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("shape", "datatype", "data", "text"),
    [
        ([1, 600], "BYTES", bytes(4 * 600), "more than 1000 elements"),
        ([1, 600], "UINT8", bytes(600), "more than 1000 elements"),
        ([1, 599, 0], "UINT8", b"", "more than 1000 lists"),
    ],
)
async def test_the_inputs_of_a_request_have_one_limit_for_python_objects(
    shape, datatype, data, text
):
    def both(a: list[Any], b: list[Any]) -> list[int]:
        return [len(one) for one in a]

    async with Served(handler=both, settings={"max_json_elements": 1000}) as served:
        one, other = (described(data, shape, datatype, name) for name in "ab")
        answer = await infer_body(served.app, **binary({"inputs": [one, other]}, data, data))
        assert text in error(answer)
        small = data[: len(data) // 600]
        others = (
            (tensor([1], [1], name="b"), b""),
            (described(small, [1, 1, *shape[2:]], datatype, "b"), small),
        )
        for other, rest in others * 2:
            answer = await infer_body(served.app, **binary({"inputs": [one, other]}, data, rest))
            assert only(answer) == [shape[1]]


async def test_a_shape_that_no_array_can_have_is_refused():
    async with Served(NDArray[np.uint8]) as served:
        answer = await infer_binary(served.app, b"", [1, 0, 2**62, 3], "UINT8")
    assert "The input 'x' is not accepted: " in error(answer)
    assert not error(answer).endswith("..")


async def test_large_tensors_are_taken_as_arrays():
    data = bytes(range(256)) * 3 * 2**9
    async with Served(NDArray[np.uint8]) as served:
        parameters = {"binary_data_output": True}
        answer = await infer_binary(served.app, data, [1, 2**17, 3], "UINT8", parameters=parameters)
    length = int(answer.headers["inference-header-content-length"])
    assert answer.body[length:] == data


@pytest.mark.one_loop
@pytest.mark.parametrize("length", ["-1", "x", "", "1" * 5000, 10_000, "1.0", "+5", "\u0661"])
async def test_a_wrong_header_length_is_refused(anything, length):
    head = {"inputs": [described(bytes(8), [1], "INT64")]}
    request = binary(head, bytes(8), length=length)
    answer = await infer_body(anything.app, **request)
    assert "Inference-Header-Content-Length" in error(answer)


async def test_binary_data_belongs_to_the_inputs(anything):
    head = {"inputs": [described(bytes(8), [1], "INT64")]}
    answer = await infer_body(anything.app, **binary(head, bytes(5)))
    assert "8 bytes, but only 5 are left" in error(answer)
    answer = await infer_body(anything.app, **binary({"inputs": [X]}, b"more"))
    assert answer.status == 400
    answer = await infer_body(anything.app, body=json.dumps(head).encode() + bytes(8))
    assert answer.status == 400
    answer = await infer_body(anything.app, head)
    assert "8 bytes, but only 0 are left" in error(answer)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("header", "status"),
    [
        (("content-type", "application/octet-stream"), 200),
        (("content-type", "application/json; charset=utf-8"), 200),
        (("content-encoding", "gzip"), 400),  # it is not
        (("content-encoding", "br"), 415),
    ],
)
async def test_the_type_and_the_coding_of_a_body_are_checked(anything, header, status):
    body = json.dumps({"inputs": [X]}).encode()
    answer = await infer_body(anything.app, body=body, headers=[header])
    assert (answer.status, "error" in answer.json()) == (status, status != 200)


async def test_a_request_that_does_not_fit_has_a_short_error():
    async with Served(list[int]) as served:
        answer = await infer(served.app, tensor(["x"] * 10_000, [10, 1000], "BYTES"))
        assert len(error(answer)) < 300


A_PAIR = {"inputs": [described(bytes(16), [1, 2], "FP64")]}


async def test_requests_with_the_same_description_have_their_own_elements():
    async with Served(list[float]) as served:
        for pair in ([1.0, 2.0], [3.0, 4.0], [1.0, 2.0]):
            data = struct.pack("<2d", *pair)
            answer = await infer_body(served.app, **binary(A_PAIR, data))
            assert only(answer) == pair
        # None is answered by what was wrong with another one.
        for data, status in ((bytes(17), 400), (bytes(15), 400), (bytes(16), 200)):
            answer = await infer_body(served.app, **binary(A_PAIR, data))
            assert answer.status == status


def test_short_descriptions_without_elements_and_ids_are_kept_up_to_a_number():
    descriptions = RequestHeads(1000)

    def is_kept(asked: Any) -> bool:
        head = json.dumps(asked).encode()
        return descriptions.of(head) is descriptions.of(head)

    assert is_kept(A_PAIR)
    assert not is_kept(A_PAIR | {"id": "1"})
    assert not is_kept(A_PAIR | {"padding": "a" * 512})
    assert not is_kept({"inputs": [X]})
    first = descriptions.of(json.dumps(A_PAIR).encode())
    for number in range(255):
        assert is_kept(A_PAIR | {"number": number})
    assert descriptions.of(json.dumps(A_PAIR).encode()) is first
    assert is_kept(A_PAIR | {"number": 255})
    assert descriptions.of(json.dumps(A_PAIR).encode()) is not first
