"""The names of the protocols that an application may speak besides Shoal's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shoal.core.options.names import suggested

PROTOCOLS: Final[Mapping[str, str]] = {
    "oip": "shoal.http.oip.protocol:OpenInference",
    "openai": "shoal.http.openai.protocol:OpenAI",
}
"""Where the protocol of each name is defined, as ``module:class``."""


def checked_protocols(name: str, value: Any) -> tuple[Any, ...]:
    """Checks names of protocols and `HttpProtocol` objects; raises `TypeError`, `ValueError`."""
    wanted = f"names of protocols ({', '.join(PROTOCOLS)}) and shoal.http.HttpProtocol objects"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list of {wanted}, not {value!r}")
    given: tuple[Any, ...] = tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for one in given:
        if isinstance(one, str):
            if one not in PROTOCOLS:
                hint = suggested(one, list(PROTOCOLS))
                raise ValueError(
                    f"{name} must name protocols ({', '.join(PROTOCOLS)}), not {one!r}"
                    + (f"; {hint}" if hint else "")
                )
        elif not callable(getattr(one, "routes", None)):
            raise TypeError(f"{name} must be a list of {wanted}, not with {one!r}")
    return given
