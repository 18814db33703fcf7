"""The GPUs that this program may use: their names, their number, and readings of them.

Their names are those of ``CUDA_VISIBLE_DEVICES``. If the program itself has that variable, its
entries are all GPUs that it may assign to replicas. Like CUDA, this module reads the list up to the
first invalid entry, so ``-1`` ends it. Without the variable, it uses all GPUs of the machine, by
index: NVML counts them, or else the driver's entries in ``/proc``.

Readings need NVML, NVIDIA's library, which the driver installs, and the extra ``gpu``, which
installs the package that calls it. Without either there are no readings and no warning, since few
machines have GPUs. Calls of NVML may hang, so each runs in a daemon thread of its own: a program
waits for an event loop's worker threads when it exits, and their number is limited.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio

from shoal.core.extras import is_installed
from shoal.loops.event_loop import EventLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


T = TypeVar("T")

logger: Final = logging.getLogger("shoal.serving")

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"

_MODULE: Final = "pynvml"
_MOST_DEVICES: Final = 64
_LIMIT_S: Final = 1.0
_OF_DRIVER: Final = Path("/proc/driver/nvidia/gpus")
_NAME: Final = re.compile(r"\d{1,4}|(GPU|MIG)-[\w/-]{1,120}", re.ASCII)


def listed_devices() -> tuple[str, ...] | None:
    """Returns the GPUs that the environment lists; None if it does not have the variable."""
    listed = os.environ.get(VISIBLE)
    if listed is None:
        return None
    names = [entry.strip() for entry in listed.split(",")]
    return tuple(dict.fromkeys(itertools.takewhile(_NAME.fullmatch, names)))


def count_gpus(of_driver: Path = _OF_DRIVER) -> int:
    """Returns the number of GPUs of this machine; may block for as long as NVML does."""
    try:
        return Nvml().count()
    except Exception:  # it has many reasons not to work
        return count_without_nvml(of_driver)


def count_without_nvml(of_driver: Path = _OF_DRIVER) -> int:
    try:
        return len(os.listdir(of_driver))
    except OSError:
        return 0


def environment_of(devices: Sequence[str]) -> dict[str, str]:
    """Returns the environment variables of a process that sees only these GPUs."""
    variables = {VISIBLE: ",".join(devices)}
    if "CUDA_DEVICE_ORDER" not in os.environ and VISIBLE not in os.environ:
        # NVML counts in this order, too.
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if "OMP_NUM_THREADS" not in os.environ:
        # PyTorch would start a thread for each core. They wait actively for their next work, which
        # is small and rare where a GPU does the rest, on the cores that the server needs.
        variables["OMP_NUM_THREADS"] = "1"
    return variables


def _readings_by_name(readings: Iterable[GpuReading]) -> dict[str, GpuReading]:
    """Returns the readings of the GPUs that this program may use, by name."""
    ours = listed_devices()
    if ours is None:
        return {str(one.index): one for one in readings}
    by_index = list(readings)
    by_name: dict[str, GpuReading] = {}
    for name in ours:
        matching = [one for one in by_index if _names(name, one)]
        if len(matching) == 1:
            by_name[name] = matching[0]
    return by_name


def _names(name: str, reading: GpuReading) -> bool:
    """Returns whether a name means a GPU; a UUID may be abbreviated."""
    return name == str(reading.index) or (name.startswith("GPU-") and reading.uuid.startswith(name))


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """A reading of one GPU; None for values that NVML does not know."""

    # In the order of the PCI bus.
    index: int
    uuid: str
    # Its model, such as "NVIDIA H100 80GB HBM3".
    name: str
    # In bytes, for all programs together.
    memory_used: int | None = None
    memory_total: int | None = None
    # The share of the last moment, up to a second, in which it was busy, from 0 to 1; None for a
    # part of a GPU (MIG).
    utilization: float | None = None


class Nvml:
    """An open connection to NVML. The constructor raises an error if NVML does not work."""

    def __init__(self) -> None:
        self._module: Any = import_module(_MODULE)
        self._module.nvmlInit()

    def count(self) -> int:
        return int(self._module.nvmlDeviceGetCount())

    def readings(self) -> tuple[GpuReading, ...]:
        """Leaves out GPUs that do not respond."""
        readings: list[GpuReading] = []
        for index in range(min(self.count(), _MOST_DEVICES)):
            try:
                readings.append(self._reading(index))
            except self._module.NVMLError:
                continue  # the GPU has fallen off the bus
        return tuple(readings)

    def _reading(self, index: int) -> GpuReading:
        module = self._module
        device = module.nvmlDeviceGetHandleByIndex(index)
        memory = self._supported(module.nvmlDeviceGetMemoryInfo, device)
        rates = self._supported(module.nvmlDeviceGetUtilizationRates, device)
        return GpuReading(
            index=index,
            uuid=_text(module.nvmlDeviceGetUUID(device)),
            name=_text(module.nvmlDeviceGetName(device)),
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            utilization=None if rates is None else rates.gpu / 100,
        )

    def _supported(self, read: Any, device: Any) -> Any:
        try:
            return read(device)
        except self._module.NVMLError:  # not all GPUs support all readings
            return None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


class BoundedCall(Generic[T]):
    """A call in a thread of its own; the constructor starts it."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.done = anyio.Event()
        # These are valid when the call is done.
        self.result: T | None = None
        self.error: Exception | None = None
        self._function = function
        self._soon = EventLoop.here().soon
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def wait(self, limit_s: float) -> bool:
        with anyio.move_on_after(limit_s):
            await self.done.wait()
        return self.done.is_set()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:
            self.error = error
        self._soon(self.done.set)


class GpuMeter:
    """Reads the GPUs that this program may use."""

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._nvml: Nvml | None = None
        self._is_missing = not is_installed(_MODULE)
        self._reading: BoundedCall[tuple[GpuReading, ...]] | None = None
        self._has_hung = False

    async def read(self) -> Mapping[str, GpuReading]:
        """Returns each GPU by name; nothing where NVML is missing, or an earlier reading hangs."""
        if self._is_missing:
            return {}
        reading = self._reading
        if reading is None:
            reading = self._reading = BoundedCall(self._read, "shoal NVML")
            self._has_hung = False
        elif self._has_hung and not reading.done.is_set():
            return {}
        if not await reading.wait(self._limit_s):
            if not self._has_hung:
                logger.warning("NVML gave no answer within %g s", self._limit_s)
            self._has_hung = True
            return {}
        if self._reading is reading:
            self._reading = None
        if reading.error is not None:
            self._is_missing = self._nvml is None
            return {}
        return _readings_by_name(reading.result or ())

    def _read(self) -> tuple[GpuReading, ...]:
        if self._nvml is None:
            self._nvml = Nvml()
        return self._nvml.readings()
