"""What a client accepts: the weighted lists of ``Accept`` and ``Accept-Encoding``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIES: Final = (b"vary", b"accept")
"""The header of an answer whose form was chosen by ``Accept``, for caches."""


def weights(header: bytes) -> dict[bytes, float]:
    """Returns the weight of each name in a header, from 0 to 1, without what can't be read."""
    found: dict[bytes, float] = {}
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
            found[name] = weight
    return found


def prefers(accepted: Mapping[bytes, float], other: bytes, usual: bytes) -> bool:
    """Returns whether a client asks for another media type than the usual one.

    It does if it names that type, and does not rank it below the usual one. A range such as ``*/*``
    does not ask for anything.
    """
    weight = accepted.get(other, 0.0)
    return weight > 0 and weight >= accepted.get(usual, 0.0)
