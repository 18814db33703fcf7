"""The contract of the forms that a body may have besides JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from shoal.core.extras import advice
from shoal.http.requests.problem import Problem, Refused

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
    names: frozenset[bytes]

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


class NotInstalled(BodyForm):
    """Refuses bodies of a form whose package is not installed.

    Args:
        names: The media types of the form.
    """

    media_type = b""

    def __init__(self, names: frozenset[bytes]) -> None:
        self.names = names

    @override
    def value(self, exchange: Exchange, body: bytes, costs: Costs) -> Any:
        detail = f"The server needs {advice('bodies')} for bodies of {min(self.names).decode()}."
        title = "The media type is not supported"
        raise Refused(Problem(415, "unsupported-media-type", title, detail))
