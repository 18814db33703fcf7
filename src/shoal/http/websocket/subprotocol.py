"""The name of the sub-protocol, which a client asks for."""

from typing import Final

SUBPROTOCOL: Final = "shoal.v1"
