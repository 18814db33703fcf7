"""The GPUs that this program may use, by their names in ``CUDA_VISIBLE_DEVICES``.

If the program itself has that variable, its entries are all GPUs that it may assign to replicas.
Like CUDA, this module reads the list up to the first invalid entry, so ``-1`` ends it. Without the
variable, it uses all GPUs of the machine, by index: NVML counts them, or else the driver's entries
in ``/proc``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.replicas.gpus.nvml import Nvml, is_there

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.replicas.gpus.nvml import GpuReading

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""The environment variable that says which GPUs a process sees."""

ORDER: Final = "CUDA_DEVICE_ORDER"
"""The environment variable that says by which order CUDA counts."""

THREADS: Final = "OMP_NUM_THREADS"
"""The environment variable that says how many threads a numerical library computes with."""

_OF_DRIVER: Final = Path("/proc/driver/nvidia/gpus")
_NAME: Final = re.compile(r"\d{1,4}|(GPU|MIG)-[\w/-]{1,120}", re.ASCII)


def given_to_us() -> tuple[str, ...] | None:
    """Returns the GPUs that the environment lists; None if it does not have the variable."""
    listed = os.environ.get(VISIBLE)
    if listed is None:
        return None
    found: list[str] = []
    for entry in listed.split(","):
        name = entry.strip()
        if not _NAME.fullmatch(name):
            break
        found.append(name)
    return tuple(dict.fromkeys(found))


def counted(of_driver: Path = _OF_DRIVER) -> int:
    """Returns the number of GPUs of this machine; may block for as long as NVML does."""
    if is_there():
        try:
            return Nvml().count()
        except Exception:  # noqa: S110 - it has many reasons not to work
            pass
    return counted_without_nvml(of_driver)


def counted_without_nvml(of_driver: Path = _OF_DRIVER) -> int:
    try:
        return len(os.listdir(of_driver))
    except OSError:
        return 0


def environment_of(devices: Sequence[str]) -> dict[str, str]:
    """Returns the environment variables of a process that sees only these GPUs."""
    found = {VISIBLE: ",".join(devices)}
    if ORDER not in os.environ and VISIBLE not in os.environ:
        # NVML counts in this order, too.
        found[ORDER] = "PCI_BUS_ID"
    if THREADS not in os.environ:
        # PyTorch would start a thread for each core. They wait actively for their next work, which
        # is small and rare where a GPU does the rest, on the cores that the server needs.
        found[THREADS] = "1"
    return found


def named(readings: Iterable[GpuReading]) -> dict[str, GpuReading]:
    """Returns the readings of the GPUs that this program may use, by name."""
    ours = given_to_us()
    if ours is None:
        return {str(one.index): one for one in readings}
    by_index = list(readings)
    found: dict[str, GpuReading] = {}
    for name in ours:
        matching = [one for one in by_index if _names(name, one)]
        if len(matching) == 1:
            found[name] = matching[0]
    return found


def _names(name: str, reading: GpuReading) -> bool:
    """Returns whether a name means a GPU; a UUID may be abbreviated."""
    return name == str(reading.index) or (name.startswith("GPU-") and reading.uuid.startswith(name))
