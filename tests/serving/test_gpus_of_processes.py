"""Each process sees its own GPUs before its code is imported; metrics and status say which."""

import json
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

import shoal
from replicas.fake_nvml import installed
from serving.scenes import deployed
from shoal.commands.support.output import status_listed
from shoal.serving.clients.wire import from_json, written
from shoal.serving.controller.controller import Controller
from shoal.status import Status
from shoal.testing.asgi import ask

pytestmark = [pytest.mark.real_time, pytest.mark.one_loop, pytest.mark.slow]

CODE = "serving.gpu_code:Seen"


async def test_each_process_sees_its_own_from_before_its_code_is_imported(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8f2c")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    async with Controller() as controller:
        config = {"placement": "process", "num_replicas": 2, "gpus": 1}
        handle = await deployed(controller, "b", CODE, config=config, endpoint="e")
        while controller.status_now().backends["b"].state != "ready":  # noqa: ASYNC110 - they are processes
            await anyio.sleep(0.01)
        seen: dict[str, int] = {}
        while len(seen) < 2:
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    device, pid = await handle.call("CUDA_VISIBLE_DEVICES")
                    assert seen.setdefault(device, pid) == pid

                tasks.start_soon(call)
                tasks.start_soon(call)
        assert set(seen) == {"3", "GPU-8f2c"}
        assert (await handle.call("CUDA_DEVICE_ORDER"))[0] is None
        assert (await handle.call("OMP_NUM_THREADS"))[0] == "1"


@pytest.mark.parametrize(
    ("options", "expected"), [({"gpus": 0.5, "env": {"OMP_NUM_THREADS": "3"}}, "3"), ({}, None)]
)
async def test_it_has_as_many_threads_for_the_cpu_as_its_options_say(
    monkeypatch, options, expected
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    async with Controller() as controller:
        handle = await deployed(
            controller, "b", CODE, config={"placement": "process", **options}, endpoint="e"
        )
        assert (await handle.call("OMP_NUM_THREADS"))[0] == expected


async def test_one_that_is_killed_gives_its_own_to_the_next_process(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    async with Controller() as controller:
        handle = await deployed(
            controller, "b", CODE, config={"placement": "process", "gpus": 1}, endpoint="e"
        )
        device, before = await handle.call("CUDA_VISIBLE_DEVICES")
        with pytest.raises(shoal.errors.ReplicaDied):
            await handle.call("die")
        again, after = await handle.call("CUDA_VISIBLE_DEVICES")
        assert (device, again) == ("5", "5")
        assert before != after


async def test_metrics_and_status_say_who_has_which_and_how_busy_they_are(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    nvml = installed(monkeypatch)
    app = shoal.App()
    app.backend("b", CODE, placement="process", gpus=0.5)
    app.route("e", backend="b", path="/e")
    async with app.lifespan():
        answer = await ask(app, "/e", "CUDA_DEVICE_ORDER")
        assert json.loads(answer.body)[0] == "PCI_BUS_ID"
        assert await gpu_samples(app) == {
            ("shoal_gpu_memory_used_bytes", "0"): 3 * 2**30,
            ("shoal_gpu_memory_used_bytes", "1"): 0,
            ("shoal_gpu_memory_bytes", "0"): 24 * 2**30,
            ("shoal_gpu_memory_bytes", "1"): 24 * 2**30,
            ("shoal_gpu_utilization_ratio", "0"): 0.25,
            ("shoal_gpu_utilization_ratio", "1"): 0,
            ("shoal_replica_gpu_share", "0", "b", "b#0"): 0.5,
        }
        status = await app.controller.status()
        assert status.backends["b"].replicas[0].gpus == ("0",)
        assert status.gpus["0"].replicas == {"b#0": 0.5}
        assert status.gpus["0"].memory_used_bytes == 3 * 2**30
        sent = from_json(Status, json.loads(written(status)))
        assert sent.gpus == status.gpus
        assert "GPU" in status_listed(status)
        [row] = [r for r in status_listed(status).splitlines() if "NVIDIA L4  b#0" in r]
        used, total = ["3,072", "MiB"], ["24,576", "MiB"]
        assert row.split() == ["0", "NVIDIA", "L4", "b#0", "0.5", *used, *total, "25%"]
        nvml.gpus = None
        assert await gpu_samples(app) == {("shoal_replica_gpu_share", "0", "b", "b#0"): 0.5}


async def test_without_gpus_metrics_and_status_do_not_speak_of_them(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    app = shoal.App()

    @app.endpoint("/double")
    async def double(item: int) -> int:
        return 2 * item

    async with app.lifespan():
        text = (await ask(app, "/-/metrics", method="GET")).body.decode()
        assert "shoal_replicas" in text
        assert "gpu" not in text
        assert "GPU" not in status_listed(await app.controller.status())


async def gpu_samples(app: Any) -> dict[Any, float]:
    text = (await ask(app, "/-/metrics", method="GET")).body.decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "gpu" in sample.name
    }
