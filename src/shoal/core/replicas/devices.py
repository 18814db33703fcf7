"""Which replica has which devices, such as GPUs: whole ones, or a part of one.

Parts are counted, not enforced: a device takes as many holders as their parts fit into it. They are
exact fractions, so that three thirds make one. A part goes to the fullest device that it fits into,
so that others stay whole.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_FINEST: Final = 1000
_MOST_SHOWN: Final = 16


def exact_part(wanted: float) -> Fraction:
    """Returns a number of devices as an exact fraction: 0.333333 is a third."""
    return Fraction(wanted).limit_denominator(_FINEST)


class DeviceLedger:
    """Records which holder has which devices."""

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
        held = [f"{device} has {_listed(by)}" for device, by in self._holders.items() if by]
        rest = len(held) - _MOST_SHOWN
        return "; ".join([*held[:_MOST_SHOWN], *([f"and {rest} more"] if rest > 0 else [])])

    def _free(self, device: str, without: Collection[str] = ()) -> Fraction:
        held = self._holders[device].items()
        return 1 - sum([part for holder, part in held if holder not in without], Fraction(0))


def _listed(holders: Mapping[str, Fraction]) -> str:
    named = [name if part == 1 else f"{name} ({float(part):.3g})" for name, part in holders.items()]
    return " and ".join([*named[:_MOST_SHOWN], *(["others"] if len(named) > _MOST_SHOWN else [])])
