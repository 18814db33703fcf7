"""Each process sees its own GPUs before its code is imported; real GPUs too, where there are."""

import importlib.util
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

import shoal
from replicas.fake_nvml import installed
from serving.gpu_code import HELD_BYTES
from serving.scenes import deployed
from shoal.commands.support.output import status_listed
from shoal.replicas.gpus import GpuMeter, GpuReading, Nvml
from shoal.serving.clients.wire import from_json, written
from shoal.serving.controller.controller import Controller
from shoal.status import Status
from shoal.testing.asgi import ask

pytestmark = [pytest.mark.real_time, pytest.mark.slow]  # CUDA takes seconds to start

CODE = "serving.gpu_code:Seen"


async def ready(controller: Controller) -> None:
    while controller.status_now().backends["b"].state != "ready":  # noqa: ASYNC110 - they are processes
        await anyio.sleep(0.01)


@pytest.mark.one_loop
async def test_each_process_sees_its_own_from_before_its_code_is_imported(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8f2c")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    async with Controller() as controller:
        config = {"placement": "process", "num_replicas": 2, "gpus": 1}
        handle = await deployed(controller, "b", CODE, config=config, endpoint="e")
        await ready(controller)
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


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("options", "expected"), [({"gpus": 0.5, "env": {"OMP_NUM_THREADS": "3"}}, "3"), ({}, None)]
)
async def test_it_has_as_many_threads_for_the_cpu_as_its_options_say(
    monkeypatch, options, expected
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    async with Controller() as controller:
        config = {"placement": "process", **options}
        handle = await deployed(controller, "b", CODE, config=config, endpoint="e")
        assert (await handle.call("OMP_NUM_THREADS"))[0] == expected


@pytest.mark.one_loop
async def test_one_that_is_killed_gives_its_own_to_the_next_process(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    async with Controller() as controller:
        config = {"placement": "process", "gpus": 1}
        handle = await deployed(controller, "b", CODE, config=config, endpoint="e")
        device, before = await handle.call("CUDA_VISIBLE_DEVICES")
        with pytest.raises(shoal.errors.ReplicaDied):
            await handle.call("die")
        again, after = await handle.call("CUDA_VISIBLE_DEVICES")
        assert (device, again) == ("5", "5")
        assert before != after


@pytest.mark.one_loop
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


@pytest.mark.one_loop
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


CUDA_CODE = "serving.gpu_code:Holder"
HOLDS = {"placement": "process", "start_timeout_s": 50}


@pytest.fixture
def gpus(monkeypatch) -> tuple[GpuReading, ...]:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("needs a GPU and its driver")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return Nvml().readings()


async def used(gpu: str) -> int:
    reading = (await GpuMeter(limit_s=10).read())[gpu]
    assert reading.memory_used is not None
    return reading.memory_used


async def until_so_many_hold(count: int, gpu: str, before: int) -> None:
    """Waits until so many processes hold memory, whose CUDA contexts take some as well."""
    while (await used(gpu) - before) // HELD_BYTES != count:  # noqa: ASYNC110 - they are processes
        await anyio.sleep(0.01)


async def opened(controller: Controller, **config: Any) -> Any:
    handle = await deployed(controller, "b", CUDA_CODE, config=HOLDS | config, endpoint="e")
    await ready(controller)
    return handle


async def test_a_replica_sees_its_gpu_and_no_other(gpus):
    async with Controller() as controller:
        handle = await opened(controller, gpus=1)
        seen, _ = await handle.call(1)
        assert seen == [gpus[0].uuid]
        assert controller.status_now().backends["b"].replicas[0].gpus == ("0",)


async def test_the_memory_that_a_replica_holds_is_in_status_and_is_free_after_it(gpus):
    before = await used("0")
    async with Controller() as controller:
        await opened(controller, gpus=1)
        gpu = (await controller.status()).gpus["0"]
        assert gpu.name == gpus[0].name
        assert gpu.memory_total_bytes == gpus[0].memory_total
        assert gpu.memory_used_bytes is not None
        assert gpu.memory_used_bytes >= before + HELD_BYTES
        assert gpu.replicas == {"b#0": 1.0}
        await controller.delete_endpoint("e")
        await controller.delete_backend("b")
        await until_so_many_hold(0, "0", before)


async def test_one_that_is_killed_gives_its_gpu_and_memory_to_the_next(gpus):
    before = await used("0")
    async with Controller() as controller:
        handle = await opened(controller, gpus=1)
        seen, pid = await handle.call(1)
        os.kill(pid, signal.SIGKILL)
        while True:
            try:
                again, after = await handle.call(1)
            except shoal.errors.ReplicaDied:
                continue
            if after != pid:
                break
        assert again == seen
        await until_so_many_hold(1, "0", before)


async def test_replicas_share_a_gpu_by_parts_and_more_than_fit_are_refused(gpus):
    most = 2 * len(gpus)
    async with Controller() as controller:
        config = HOLDS | {"gpus": 0.5, "num_replicas": most + 1}
        with pytest.raises(shoal.errors.NotEnoughGpus, match=f"this machine has {len(gpus)}: 0"):
            await controller.create_backend("b", CUDA_CODE, config=config)
        handle = await opened(controller, gpus=0.5, num_replicas=most, max_batch_size=1)
        seen: dict[int, list[str]] = {}
        while len(seen) < most:
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    uuids, pid = await handle.call(1)
                    seen[pid] = uuids

                for _ in range(most):
                    tasks.start_soon(call)
        assert sorted(uuids[0] for uuids in seen.values()) == sorted(2 * [g.uuid for g in gpus])
        assert {sum(g.replicas.values()) for g in (await controller.status()).gpus.values()} == {1}


async def test_a_server_that_was_given_a_gpu_by_its_uuid_gives_that(gpus, monkeypatch):
    uuid = gpus[-1].uuid
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
    async with Controller() as controller:
        handle = await opened(controller, gpus=1)
        assert (await handle.call(1))[0] == [uuid]
        gpu = (await controller.status()).gpus[uuid]
        assert (gpu.name, gpu.replicas) == (gpus[-1].name, {"b#0": 1.0})
        with pytest.raises(shoal.errors.NotEnoughGpus, match="CUDA_VISIBLE_DEVICES of this server"):
            await controller.create_backend("c", CUDA_CODE, config=HOLDS | {"gpus": 1})


GUIDE = Path(__file__).resolve().parents[2] / "docs/how-to/serve-a-gpu-model.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITHOUT_A_SERVER = """
import json, torch, torchvision
torch.manual_seed(1)
model = torchvision.models.resnet50()
images = (torch.rand(32, 3, 1, 1) * torch.rand(32, 3, 224, 224) * 255).byte()
with torch.inference_mode():
    model(images / 255)  # layers that normalize learn what images are like
    best = model.eval()(images / 255).topk(2, 1).values
torch.save(model.state_dict(), "resnet50.pt")
# Of near ties another size of batch makes another answer.
clear = images[(best[:, 0] - best[:, 1]).topk(8).indices]
raw = [image.numpy().tobytes() for image in clear]
open("images", "wb").write(b"".join(raw))
from vision import Classifier
classifier = Classifier("resnet50.pt")
print(json.dumps([classifier([image])[0] for image in raw]))
"""


@pytest.mark.one_loop
async def test_the_classifier_of_the_how_to_guide_answers_as_it_does_without_a_server(
    gpus, tmp_path, monkeypatch
):
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision")
    handler, application = BLOCK.findall(GUIDE.read_text())[:2]
    (tmp_path / "vision.py").write_text(handler)
    ran = await anyio.run_process([sys.executable, "-c", WITHOUT_A_SERVER], cwd=tmp_path)
    expected = json.loads(ran.stdout)
    images = (tmp_path / "images").read_bytes()
    size = len(images) // len(expected)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    scope: dict[str, Any] = {}
    exec(application, scope)
    app = scope["app"]
    answered: list[int] = [-1] * len(expected)

    async def classify(nth: int) -> None:
        headers = [("content-type", "application/octet-stream")]
        body = images[nth * size :][:size]
        answer = await ask(app, "/classify", body=body, headers=headers)
        answered[nth] = json.loads(answer.body)

    async with app.lifespan(), anyio.create_task_group() as tasks:
        for nth in range(len(expected)):
            tasks.start_soon(classify, nth)
    assert answered == expected
    assert len(set(expected)) > 1
