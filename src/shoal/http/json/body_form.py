"""The contract of body forms besides JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from shoal.core.extras import advice
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from shoal.http.json.scan import Costs
    from shoal.http.requests.exchange import Exchange


class BodyForm(ABC):
    """Reads bodies of another media type than JSON; the type of the item is the same."""

    media_type: ClassVar[bytes]
    # All media types that clients use for it.
    names: frozenset[bytes]

    @abstractmethod
    def value(self, exchange: Exchange, body: bytes, costs: Costs) -> Any:
        """Reads a body without content coding; raises `Refused` if malformed or too large."""


class NotInstalled(BodyForm):
    """Refuses bodies of a form if its package is not installed."""

    media_type = b""

    def __init__(self, names: frozenset[bytes]) -> None:
        self.names = names

    @override
    def value(self, exchange: Exchange, body: bytes, costs: Costs) -> Any:
        detail = f"The server needs {advice('bodies')} for bodies of {min(self.names).decode()}."
        raise Refused.of("unsupported-media-type", detail)
