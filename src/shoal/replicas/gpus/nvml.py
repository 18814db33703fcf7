"""Readings of GPUs with NVML, NVIDIA's library. They block, perhaps forever.

The driver installs NVML, and the extra ``gpu`` installs the package that calls it. Without either
there are no readings and no warning, since few machines have GPUs.
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


def is_there(library: str | None = "libnvidia-ml.so.1") -> bool:
    """Returns whether NVML and its package are installed; does not block."""
    try:
        if not is_installed(_MODULE):
            return False
        ctypes.CDLL(library)
    except (ValueError, OSError):
        return False
    return True


class Nvml:
    """An open connection to NVML. The constructor raises an error if NVML does not work."""

    def __init__(self) -> None:
        self._module: Any = import_module(_MODULE)
        self._module.nvmlInit()

    def count(self) -> int:
        return int(self._module.nvmlDeviceGetCount())

    def readings(self) -> tuple[GpuReading, ...]:
        """Leaves out GPUs that do not respond."""
        found: list[GpuReading] = []
        for index in range(min(self.count(), _MOST_DEVICES)):
            try:
                found.append(self._reading(index))
            except self._module.NVMLError:
                continue  # the GPU has fallen off the bus
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
        except self._module.NVMLError:  # not all GPUs support all readings
            return None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
