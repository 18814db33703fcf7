"""What requests are counted under."""

from __future__ import annotations


class Counted:
    """What requests are counted under whose route is not that of one endpoint.

    Args:
        name: The name of the endpoint that is called.
        protocol: The protocol; one of `PROTOCOLS`.

    Attributes:
        name: As above.
        protocol: As above.
        new_times: As a route's.
    """

    __slots__ = ("name", "new_times", "protocol")

    def __init__(self, name: str, protocol: str) -> None:
        self.name = name
        self.protocol = protocol
        self.new_times: dict[int, list[float]] = {}
