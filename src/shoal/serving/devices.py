"""The GPUs of a server: it assigns them to the replicas of its backends.

Placement ``"ray"`` gets none: on a cluster Ray assigns them. The GPUs are looked up when the first
backend asks for some.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from shoal.core.replicas.devices import DeviceLedger
from shoal.errors import NotEnoughGpus
from shoal.replicas.gpus import (
    VISIBLE,
    BoundedCall,
    GpuMeter,
    count_gpus,
    count_without_nvml,
    listed_devices,
)
from shoal.serving.status import GpuStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping

    from shoal.replicas.gpus import GpuReading
    from shoal.serving.config.config import BackendConfig

_LIMIT_S: Final = 10.0
"""How long NVML may take to count the GPUs."""


class Devices:
    def __init__(self, meter: GpuMeter | None = None) -> None:
        self.meter = GpuMeter() if meter is None else meter
        self._found: DeviceLedger | None = None
        self._source = ""  # of the GPUs, for messages
        self._giving = anyio.Lock()

    async def find(self, config: BackendConfig) -> None:
        """Looks up the GPUs, if replicas with this config need some."""
        if self._found is not None or _wanted(config) is None:
            return
        ours = listed_devices()
        if ours is not None:
            source = f"{VISIBLE} of this server leaves it"
        else:
            counting = BoundedCall(count_gpus, "shoal GPUs")
            has_ended = await counting.wait(_LIMIT_S)
            number = counting.result if has_ended else count_without_nvml()
            ours = tuple(map(str, range(number or 0)))
            source = "this machine has"
        if self._found is None:
            self._found, self._source = DeviceLedger(ours), source

    @asynccontextmanager
    async def checked(self, backend: str, config: BackendConfig) -> AsyncGenerator[None]:
        """Raises `NotEnoughGpus`, or holds the free GPUs for the replicas that the block starts."""
        if _wanted(config) is None:
            yield
            return
        async with self._giving:
            await self.find(config)
            self.check(backend, config, config.num_replicas)
            yield

    def check(
        self, backend: str, config: BackendConfig, replicas: int, own: Collection[str] = ()
    ) -> None:
        """Checks that `replicas` replicas can have GPUs, those of the replicas `own` included."""
        wanted = _wanted(config)
        if wanted is not None and self._ledger.places(wanted, own) < replicas:
            each = "" if replicas == 1 else f" for each of {replicas} replicas"
            raise self._refusal(f"{backend} asks for gpus={wanted:g}{each}")

    def places(self, config: BackendConfig) -> int | None:
        """Returns how many more replicas can have GPUs; None if they need none."""
        wanted = _wanted(config)
        return None if wanted is None else self._ledger.places(wanted)

    def take(self, replica: str, config: BackendConfig) -> tuple[str, ...]:
        """Assigns GPUs to a replica, if its config asks for some."""
        wanted = _wanted(config)
        if wanted is None:
            return ()
        devices = self._ledger.take(replica, wanted)
        if devices is None:
            raise self._refusal(f"{replica} asks for gpus={wanted:g}")
        return devices

    def release(self, replica: str) -> None:
        if self._found is not None:
            self._ledger.release(replica)

    def status(self, readings: Mapping[str, GpuReading] | None = None) -> dict[str, GpuStatus]:
        found: dict[str, GpuStatus] = {}
        if self._found is not None:
            for name, parts in self._ledger.parts().items():
                found[name] = GpuStatus(replicas=parts)
        for name, reading in (readings or {}).items():
            found[name] = GpuStatus(
                name=reading.name,
                replicas=found[name].replicas if name in found else {},
                memory_used_bytes=reading.memory_used,
                memory_total_bytes=reading.memory_total,
                utilization=reading.utilization,
            )
        return found

    @property
    def _ledger(self) -> DeviceLedger:
        assert self._found is not None, "`find` comes first"
        return self._found

    def _refusal(self, asked: str) -> NotEnoughGpus:
        ledger = self._ledger
        count = len(ledger.devices)
        if count == 0:
            return NotEnoughGpus(
                f"{asked}, and {self._source} none; {VISIBLE} in the environment of the "
                "server names them, if it can't find them"
            )
        named = f"{count}: {', '.join(ledger.devices[:16])}{', ...' if count > 16 else ''}"
        taken = ledger.shown() or "nobody has any"
        return NotEnoughGpus(f"{asked}, and {self._source} {named}; {taken}")


def _wanted(config: BackendConfig) -> float | None:
    """Returns how many GPUs each replica gets; None for none."""
    return None if config.placement == "ray" else config.placed.get("gpus")
