"""Reads the GPUs on demand, with a time limit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from shoal.replicas.gpus.bounded import BoundedCall
from shoal.replicas.gpus.nvml import Nvml, is_there
from shoal.replicas.gpus.visible import named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.replicas.gpus.nvml import GpuReading

logger: Final = logging.getLogger("shoal.serving")

_LIMIT_S: Final = 1.0


class GpuMeter:
    """Reads the GPUs that this program may use."""

    def __init__(self, open_: Callable[[], Nvml] = Nvml, limit_s: float = _LIMIT_S) -> None:
        self._open = open_
        self._limit_s = limit_s
        self._nvml: Nvml | None = None
        self._is_missing = not is_there()
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
        return named(reading.result or ())

    def _read(self) -> tuple[GpuReading, ...]:
        if self._nvml is None:
            self._nvml = self._open()
        return self._nvml.readings()
