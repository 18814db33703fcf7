"""Readings of GPUs by NVML, NVIDIA's library for it. They block, perhaps for ever.

It is there with the driver, and the extra ``gpu`` has the package that calls it. Without either
there are no readings, and nothing is said: few machines have GPUs.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from shoal.core.extras import is_installed

_MODULE: Final = "pynvml"
_MOST_DEVICES: Final = 64


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """What NVML says of one GPU.

    Attributes:
        index: Its number, by the order on the PCI bus.
        uuid: Its name that no other GPU has.
        name: Its kind, such as ``"NVIDIA H100 80GB HBM3"``.
        memory_used: The memory in use, by all programs, in bytes; None if that is not known.
        memory_total: Its memory in bytes; None if that is not known.
        utilization: The share of the last moment, up to a second, in which it ran anything, from 0
            to 1; None if that is not known, as for a part of a GPU (MIG).
    """

    index: int
    uuid: str
    name: str
    memory_used: int | None = None
    memory_total: int | None = None
    utilization: float | None = None


def is_there(library: str | None = "libnvidia-ml.so.1") -> bool:
    """Returns whether there is NVML, and the package that calls it; this does not block.

    Args:
        library: The file of NVML; None for any.
    """
    try:
        if not is_installed(_MODULE):
            return False
        ctypes.CDLL(library)
    except (ValueError, OSError):
        return False
    return True


class Nvml:
    """The connection to NVML. The constructor opens it.

    Raises:
        Exception: NVML is not there, or does not work.
    """

    def __init__(self) -> None:
        self._module: Any = import_module(_MODULE)
        self._module.nvmlInit()

    def count(self) -> int:
        """Returns the number of GPUs."""
        return int(self._module.nvmlDeviceGetCount())

    def readings(self) -> tuple[GpuReading, ...]:
        """Returns a reading of each GPU that answers."""
        found: list[GpuReading] = []
        for index in range(min(self.count(), _MOST_DEVICES)):
            try:
                found.append(self._reading(index))
            except self._module.NVMLError:
                continue  # it has fallen off the bus
        return tuple(found)

    def _reading(self, index: int) -> GpuReading:
        module = self._module
        device = module.nvmlDeviceGetHandleByIndex(index)
        memory = self._asked(module.nvmlDeviceGetMemoryInfo, device)
        rates = self._asked(module.nvmlDeviceGetUtilizationRates, device)
        return GpuReading(
            index=index,
            uuid=_text(module.nvmlDeviceGetUUID(device)),
            name=_text(module.nvmlDeviceGetName(device)),
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            utilization=None if rates is None else rates.gpu / 100,
        )

    def _asked(self, question: Any, device: Any) -> Any:
        try:
            return question(device)
        except self._module.NVMLError:  # not all GPUs can tell all
            return None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
