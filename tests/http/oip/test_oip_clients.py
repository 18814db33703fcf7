"""The Open Inference Protocol with Triton's own clients, against servers on real sockets."""

import functools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from live_server import live
from oip_app import oip_app

np = pytest.importorskip("numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")
triton = pytest.importorskip("tritonclient.http")


pytestmark = pytest.mark.real_time

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
CLIENTS = 8
REQUESTS = 40


def tensor(name: str, array: Any, binary: bool) -> Any:
    datatype = triton.np_to_triton_dtype(array.dtype)
    given = triton.InferInput(name, array.shape, datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def check_models(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("same")
    assert client.is_model_ready("same", "same")
    assert not client.is_model_ready("nothing")
    assert not client.is_model_ready("same", "2")
    assert client.get_server_metadata()["name"] == "shoal"
    assert client.get_model_metadata("dot")["inputs"] == [
        {"name": name, "datatype": "FP64", "shape": [-1, -1]} for name in "ab"
    ]


def check_datatypes(client: Any) -> None:
    rng = np.random.default_rng(1)
    for dtype in DTYPES:
        array = (rng.random((6, 2, 3)) * 100).astype(dtype)
        for binary in (True, False):
            wanted = [triton.InferRequestedOutput("output", binary_data=binary)]
            for outputs in (wanted, None):
                found = client.infer(
                    "array", [tensor("x", array, binary)], outputs=outputs, request_id="7"
                )
                assert found.get_response()["id"] == "7"
                assert found.as_numpy("output").dtype == array.dtype
                assert (found.as_numpy("output") == array).all()
                # As Python values there are fewer types.
                found = client.infer("same", [tensor("x", array, binary)], outputs=outputs)
                assert (found.as_numpy("output") == array).all()
    array = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    found = client.infer("array", [tensor("x", array, True)]).as_numpy("output")
    assert (found == array.astype("f4")).all()
    for binary in (True, False):
        wanted = [triton.InferRequestedOutput("output", binary_data=binary)]
        found = client.infer("half", [tensor("x", array, True)], outputs=wanted)
        assert found.get_output("output")["datatype"] == "BF16"
        assert (found.as_numpy("output") == array.astype("f4")).all()


def check_text(client: Any) -> None:
    text = np.array([["é".encode()], [b"b"], [b""]], dtype=np.object_)
    for binary in (True, False):
        found = client.infer("upper", [tensor("text", text, binary)])
        assert found.as_numpy("output").tolist() == ["É".encode(), b"B", b""]
    raw = np.array([b"\xff\x00"], dtype=np.object_)
    found = client.infer("same", [tensor("x", raw, True)])
    assert found.as_numpy("output").tolist() == [b"\xff\x00"]
    with pytest.raises(triton.InferenceServerException, match="does not fit the model"):
        client.infer("upper", [tensor("text", raw, True)])


def check_errors(client: Any) -> None:
    one, many = np.array([1]), np.arange(16_385)
    for model, array, more, status, text in (
        ("nothing", one, {}, "404", "no such model"),
        ("same", one, {"model_version": "2"}, "404", "not found"),
        ("dot", one, {}, "400", "'a' is missing"),
        ("same", one, {"sequence_id": 3}, "400", "sequence_id"),
        ("fail", one, {}, "500", "The call failed"),
        ("same", many, {}, "400", "1 to 16384 rows, but it has 16385"),
    ):
        with pytest.raises(triton.InferenceServerException, match=text) as raised:
            client.infer(model, [tensor("x", array, True)], **more)
        assert raised.value.status() == status
        assert "private" not in raised.value.message()


def check_compression(client: Any) -> None:
    array = np.arange(2000.0).reshape(2, 1000)
    for algorithm in ("gzip", "deflate"):
        for binary in (True, False):
            found = client.infer(
                "array",
                [tensor("x", array, binary)],
                outputs=[triton.InferRequestedOutput("output", binary_data=binary)],
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            assert (found.as_numpy("output") == array).all()


CHECKS = (check_models, check_datatypes, check_text, check_compression, check_errors)


def check_load(port: int) -> float:
    """Many clients at once, with requests of any number of rows; the mean size of a batch."""
    batches: list[int] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        choose = random.Random(seed)
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            for _ in range(REQUESTS):
                rows, binary = choose.choice([1, 1, 2, 5, 40]), choose.random() < 0.5
                a, b = rng.random((2, rows, 16))
                found = client.infer("dot", [tensor("a", a, binary), tensor("b", b, binary)])
                assert np.allclose(found.as_numpy("dot"), (a * b).sum(1), rtol=1e-12)
                batches.extend(found.as_numpy("batch").tolist())

    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(ask, seed) for seed in range(CLIENTS)]:
            done.result()
    return sum(batches) / len(batches)


async def test_the_client_of_triton_is_served():
    async with live(oip_app()) as server:

        def check() -> None:
            with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
                for one in CHECKS:
                    one(client)

        await anyio.to_thread.run_sync(check)


@pytest.mark.slow
async def test_many_clients_at_once_get_their_own_results():
    async with live(oip_app()) as server:
        mean = await anyio.to_thread.run_sync(functools.partial(check_load, server.port))
    assert mean > 4  # rows share batches
