"""The GPUs of a server: it assigns them to the replicas of its backends.

Placement ``"ray"`` gets none: on a cluster Ray assigns them. The GPUs are looked up when the first
backend asks for some.

A GPU takes as many holders as their parts fit into it; parts are counted, not enforced. They are
exact fractions, so that three thirds make one. A part goes to the fullest GPU that it fits into,
so that others stay whole.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import anyio

from shoal.errors import NotEnoughGpus
from shoal.replicas.gpus import (
    VISIBLE,
    BoundedCall,
    GpuMeter,
    GpuReading,
    count_gpus,
    count_without_nvml,
    listed_devices,
)
from shoal.status import GpuStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping

    from shoal.serving.backend_config import BackendConfig

_LIMIT_S: Final = 10.0
"""How long NVML may take to count the GPUs."""

_FINEST: Final = 1000


def exact_part(wanted: float) -> Fraction:
    """Returns a number of devices as an exact fraction: 0.333333 is a third."""
    return Fraction(wanted).limit_denominator(_FINEST)


class DeviceLedger:
    def __init__(self, devices: Iterable[str]) -> None:
        self.devices = tuple(dict.fromkeys(devices))
        self._holders: dict[str, dict[str, Fraction]] = {device: {} for device in self.devices}

    def take(self, holder: str, wanted: float) -> tuple[str, ...] | None:
        """Gives a holder without devices a number or a part of one; None if too few are free."""
        assert not self.held_by(holder)
        part = min(exact_part(wanted), Fraction(1))
        fitting = [device for device in self.devices if self._free(device) >= part]
        chosen = sorted(fitting, key=self._free)[:1] if part < 1 else fitting[: int(wanted)]
        if len(chosen) < (1 if part < 1 else int(wanted)):
            return None
        for device in chosen:
            self._holders[device][holder] = part
        return tuple(chosen)

    def release(self, holder: str) -> None:
        for holders in self._holders.values():
            holders.pop(holder, None)

    def held_by(self, holder: str) -> tuple[str, ...]:
        return tuple([device for device, held in self._holders.items() if holder in held])

    def places(self, wanted: float, without: Collection[str] = ()) -> int:
        """Returns how many more holders could be given devices, once `without` have ended."""
        part = min(exact_part(wanted), Fraction(1))
        free = [self._free(device, without) for device in self.devices]
        if part < 1:
            return sum([int(each // part) for each in free])
        return sum([each == 1 for each in free]) // int(wanted)

    def parts(self) -> Mapping[str, Mapping[str, float]]:
        return {
            device: {holder: float(part) for holder, part in held.items()}
            for device, held in self._holders.items()
        }

    def shown(self) -> str:
        """Returns text such as ``"0 has a#0; 1 has a#1 (0.5) and b#0 (0.25)"``."""
        return "; ".join(
            f"{device} has {_listed(by)}" for device, by in self._holders.items() if by
        )

    def _free(self, device: str, without: Collection[str] = ()) -> Fraction:
        held = self._holders[device].items()
        return 1 - sum([part for holder, part in held if holder not in without], Fraction(0))


class Devices:
    def __init__(self) -> None:
        self.meter = GpuMeter()
        self._ledger = DeviceLedger(())
        self._is_found = False
        self._source = ""  # of the GPUs, for messages
        self._giving = anyio.Lock()

    async def find(self, config: BackendConfig) -> None:
        """Looks up the GPUs, if replicas with this config need some."""
        if self._is_found or _wanted(config) is None:
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
        if not self._is_found:
            self._is_found, self._ledger, self._source = True, DeviceLedger(ours), source

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
        self._ledger.release(replica)

    def status(self, readings: Mapping[str, GpuReading] | None = None) -> dict[str, GpuStatus]:
        parts = self._ledger.parts()
        found = {name: GpuStatus(replicas=held) for name, held in parts.items()}
        for name, reading in (readings or {}).items():
            found[name] = GpuStatus(
                name=reading.name,
                replicas=parts.get(name, {}),
                memory_used_bytes=reading.memory_used,
                memory_total_bytes=reading.memory_total,
                utilization=reading.utilization,
            )
        return found

    def _refusal(self, asked: str) -> NotEnoughGpus:
        devices = self._ledger.devices
        has = f"none; {VISIBLE} in the environment of the server names them, if it can't find them"
        if devices:
            taken = self._ledger.shown() or "nobody has any"
            has = f"{len(devices)}: {', '.join(devices)}; {taken}"
        return NotEnoughGpus(f"{asked}, and {self._source} {has}")


def _wanted(config: BackendConfig) -> float | None:
    """Returns how many GPUs each replica gets; None for none."""
    return None if config.placement == "ray" else config.placed.get("gpus")


def _listed(holders: Mapping[str, Fraction]) -> str:
    named = [name if part == 1 else f"{name} ({float(part):.3g})" for name, part in holders.items()]
    return " and ".join(named)
