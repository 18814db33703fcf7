"""Which GPUs there are and how busy they are, by a fake NVML, and by the real one where it is."""

import logging
import sys
import threading
from pathlib import Path

import anyio
import pytest

from replicas.fake_nvml import FakeNvml, NVMLError, installed
from shoal.replicas.gpus import (
    GpuMeter,
    GpuReading,
    count_gpus,
    count_without_nvml,
    environment_of,
    listed_devices,
)
from shoal.serving.backend_config import BackendConfig
from shoal.serving.devices import Devices

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def _no_list(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


@pytest.fixture
def nvml(monkeypatch) -> FakeNvml:
    return installed(monkeypatch)


async def test_a_reading_has_memory_and_utilization(nvml):
    assert await GpuMeter().read() == {
        "0": GpuReading(
            index=0,
            uuid="GPU-aaaa-1",
            name="NVIDIA L4",
            memory_used=3 * 2**30,
            memory_total=24 * 2**30,
            utilization=0.25,
        ),
        "1": GpuReading(
            index=1,
            uuid="GPU-bbbb-2",
            name="NVIDIA L4",
            memory_used=0,
            memory_total=24 * 2**30,
            utilization=0.0,
        ),
    }


async def test_what_a_gpu_can_not_tell_is_left_out(nvml):
    nvml.gpus[0] = ("MIG-a", "part", None, None, None)
    reading = (await GpuMeter().read())["0"]
    assert (reading.memory_used, reading.memory_total, reading.utilization) == (None, None, None)


async def test_a_gpu_that_is_lost_is_left_out(nvml):
    nvml.gpus[0] = NVMLError("GPU is lost")
    assert [*await GpuMeter().read()] == ["1"]


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("1", {"1": 1}),
        ("GPU-bbbb-2,0", {"GPU-bbbb-2": 1, "0": 0}),
        ("GPU-b", {"GPU-b": 1}),  # CUDA takes a UUID that is cut short
        ("GPU-", {}),  # which one of them?
        ("7,MIG-1", {}),
        ("", {}),
    ],
)
async def test_only_the_gpus_that_the_server_may_use_are_read(nvml, monkeypatch, listed, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    readings = await GpuMeter().read()
    assert {name: one.index for name, one in readings.items()} == names


async def test_where_nvml_is_missing_nothing_is_said(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meter = GpuMeter()
    assert await meter.read() == {}
    assert await meter.read() == {}
    assert caplog.records == []


async def test_where_there_is_no_driver_nothing_is_said_and_not_asked_again(nvml, caplog):
    nvml.init_error = NVMLError("library not found")
    meter = GpuMeter()
    assert await meter.read() == {}
    nvml.init_error = None
    assert await meter.read() == {}
    assert nvml.calls == 0
    assert caplog.records == []


async def test_an_error_of_one_reading_is_not_that_of_the_next(nvml):
    meter = GpuMeter()
    assert len(await meter.read()) == 2
    gpus, nvml.gpus = nvml.gpus, None
    assert await meter.read() == {}
    nvml.gpus = gpus
    assert len(await meter.read()) == 2


async def test_a_hanging_nvml_keeps_nobody_waiting(nvml, caplog):
    before = set(threading.enumerate())
    meter = GpuMeter()
    assert len(await meter.read()) == 2
    nvml.go_on.clear()
    meter._limit_s = 0.02
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        assert await meter.read() == {}
        meter._limit_s = 3600  # as long as this nobody waits for one that hangs already
        for _ in range(50):
            assert await meter.read() == {}
        tasks.cancel_scope.cancel()
    assert ticks > 1
    begun = set(threading.enumerate()) - before
    assert [one.name for one in begun].count("shoal NVML") == 1
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "NVML gave no answer within 0.02 s")
    ]
    nvml.go_on.set()
    while not await meter.read():  # noqa: ASYNC110 - it is in a thread
        await anyio.sleep(0.001)


async def test_two_that_ask_at_once_share_a_reading(nvml):
    meter = GpuMeter(limit_s=30)
    nvml.go_on.clear()
    found = []

    async def ask() -> None:
        found.append(await meter.read())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        nvml.go_on.set()
    assert [len(one) for one in found] == [2, 2]
    assert nvml.calls == 1


def test_gpus_are_counted_by_nvml_or_by_what_the_driver_shows(nvml, monkeypatch, tmp_path: Path):
    assert count_gpus(tmp_path) == 2
    for name in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / name).mkdir()
    nvml.init_error = NVMLError("driver/library version mismatch")
    assert count_gpus(tmp_path) == 3
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert count_gpus(tmp_path) == 3
    assert count_without_nvml(tmp_path / "none") == 0


async def test_all_gpus_of_the_machine_are_given_out_by_index(nvml):
    devices = Devices()
    config = BackendConfig(placement="process", gpus=1)
    await devices.find(config)
    assert devices.places(config) == 2
    assert devices.take("b#0", config) == ("0",)
    await devices.find(config)
    status = devices.status(await devices.meter.read())
    assert (status["0"].replicas, status["0"].utilization) == ({"b#0": 1.0}, 0.25)
    assert (status["1"].replicas, status["1"].name) == ({}, "NVIDIA L4")


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        (None, None),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2,0", ("2", "0")),
        (" 1 , 1,3", ("1", "3")),
        ("0,-1,2", ("0",)),
        ("GPU-8f2c-11,MIG-GPU-8f/1/2", ("GPU-8f2c-11", "MIG-GPU-8f/1/2")),
        ("0,\n1;rm", ("0",)),
    ],
)
def test_the_servers_own_list_is_read_as_cuda_does(monkeypatch, listed, names):
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert listed_devices() == names


def test_indices_are_those_of_the_bus_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    by_bus = {"CUDA_VISIBLE_DEVICES": "0,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert environment_of(["0", "2"]) == by_bus
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert environment_of(["0"]) == {"CUDA_VISIBLE_DEVICES": "0"}
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert environment_of(["2"]) == {"CUDA_VISIBLE_DEVICES": "2"}


def test_a_process_with_a_gpu_computes_with_one_thread_unless_the_environment_has_a_number(
    monkeypatch,
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment_of(["0"])["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert "OMP_NUM_THREADS" not in environment_of(["0"])
