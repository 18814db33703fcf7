"""What a call needs of the connection that carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shoal.http.server.shared import Shared


class Carrier(Protocol):
    """What a call needs of its connection.

    Attributes:
        shared: The state of the address.
        peer: The client's host and port.
        name: The server's host and port.
    """

    shared: Shared
    peer: tuple[str, int] | None
    name: tuple[str, int] | None

    @property
    def is_sending(self) -> bool:
        """Whether the kernel has not taken all that was sent."""
        ...

    def send(self, data: bytes) -> bool:
        """Sends bytes; returns whether the kernel has taken all of them."""
        ...

    def read_more(self) -> None:
        """Reads more of the body, since the application has taken what came."""
        ...

    def answered(self, call: Any, now: float | None = None) -> None:
        """Handles that the whole answer was passed to the kernel; just now on the loop's clock."""
        ...

    def call_ended(self, call: Any) -> None:
        """Handles that the application has returned."""
        ...

    def abort(self) -> None:
        """Closes the connection by force."""
        ...
