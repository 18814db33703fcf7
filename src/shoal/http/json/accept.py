"""The weighted media types of ``Accept``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Tells caches that ``Accept`` chose the form of a response.
VARIES: Final = (b"vary", b"accept")


def weights(header: bytes) -> dict[bytes, float]:
    """Returns weights from 0 to 1 by name, without unreadable parts."""
    weight_of: dict[bytes, float] = {}
    for media_range in header.lower().split(b","):
        name, *parameters = (part.strip() for part in media_range.split(b";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = -1.0
        if name and 0 <= weight <= 1:
            weight_of[name] = weight
    return weight_of


def prefers(accepted: Mapping[bytes, float], other: bytes, usual: bytes) -> bool:
    """Returns whether `other` is named, and not below `usual`; ``*/*`` names nothing."""
    weight = accepted.get(other, 0.0)
    return weight > 0 and weight >= accepted.get(usual, 0.0)
