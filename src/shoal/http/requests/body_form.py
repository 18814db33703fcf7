"""The contract of the forms that a body may have besides JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.json_scan import Costs


class BodyForm(ABC):
    """Reads bodies of other media types than JSON, which are then checked against the same type.

    Attributes:
        media_type: The media type.
        names: All media types by which clients know it.
    """

    media_type: ClassVar[bytes]
    names: ClassVar[frozenset[bytes]]

    @abstractmethod
    def value(self, exchange: Exchange, body: bytes, costs: Costs) -> Any:
        """Returns the value of a body.

        Args:
            exchange: The request.
            body: Its body, without a content coding.
            costs: The memory that elements take; ``max_json_elements`` limits how many there are.

        Raises:
            Refused: The body is malformed, or too large.
        """
