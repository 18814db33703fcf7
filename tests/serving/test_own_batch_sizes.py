"""The batch sizes of a class's own batched methods, which its replica's requests can't reach."""

import logging
from typing import Any

import pytest

import shoal
from serving.scenes import deployed
from shoal.serving.controller.controller import Controller

pytestmark = pytest.mark.real_time


class Model:
    def __init__(self, size: int | None = None) -> None:
        if size is not None:
            self.predict.set_max_batch_size(size)

    @shoal.batch(max_batch_size=64)
    async def predict(self, items: list[int]) -> list[int]:
        return items

    @shoal.batch(max_batch_size=5000, batch_size_fn=lambda item: item)
    async def weighed(self, items: list[int]) -> list[int]:
        return items

    async def __call__(self, item: int) -> int:
        if item > 1:
            self.predict.set_max_batch_size(item)
        return await self.predict(item)

    def reconfigure(self, user_config: int) -> None:
        self.predict.configure(max_batch_size=user_config)


@shoal.batch(max_batch_size=64)
async def function(items: list[int]) -> list[int]:
    return items


def warnings(caplog: Any) -> list[str]:
    found = [one.getMessage() for one in caplog.records if "can't be reached" in one.getMessage()]
    caplog.clear()
    return found


@pytest.mark.parametrize(
    ("code", "args", "config", "sizes"),
    [
        (Model, (), {}, []),
        (Model, (), {"max_ongoing_requests": 64}, []),
        (Model, (), {"max_ongoing_requests": 8}, [(64, 8)]),
        (Model, (), {"max_concurrent_batches": None}, []),
        (Model, (101,), {}, [(101, 100)] * 2),
        (Model, (4,), {"max_ongoing_requests": 8}, []),
        (Model, (), {"max_ongoing_requests": 8, "user_config": 9}, [(64, 8), (9, 8)]),
        (function, (), {"max_ongoing_requests": 8}, [(64, 8)]),
    ],
)
async def test_a_size_that_can_not_be_reached_warns_at_start(caplog, code, args, config, sizes):
    async with Controller() as client:
        await client.create_backend("m", code, *args, config=config)
        found = warnings(caplog)
    assert len(found) == len(sizes)
    for message, (size, most) in zip(found, sizes, strict=True):
        assert f"max_batch_size={size} " in message
        assert f"max_ongoing_requests={most} " in message


async def test_a_setter_warns_of_a_size_that_can_not_be_reached(caplog: Any) -> None:
    async with Controller() as client:
        handle = await deployed(client, "m", Model, config={"max_ongoing_requests": 80})
        assert (await handle.call(80), warnings(caplog)) == (80, [])
        assert await handle.call(81) == 81
        (message,) = warnings(caplog)
        assert "Model.predict: max_batch_size=81 " in message
        assert "max_ongoing_requests=80 " in message


@pytest.mark.one_loop
async def test_a_worker_process_warns_at_start_and_in_the_setter(caplog: Any) -> None:
    caplog.set_level(logging.INFO, "shoal")
    async with Controller() as client:
        config = {"max_ongoing_requests": 8, "placement": "process"}
        await deployed(client, "m", Model, config=config)
        assert await (await client.get_handle("m")).call(9) == 9
    found = warnings(caplog)
    assert [size in " ".join(found) for size in ("max_batch_size=64", "max_batch_size=9")] == [
        True,
        True,
    ]


async def test_code_that_no_replica_runs_warns_of_nothing(caplog: Any) -> None:
    Model(5000)
    assert warnings(caplog) == []
