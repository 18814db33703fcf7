"""The names of the extensions of ASGI that Shoal's servers offer and its application uses."""

from typing import Final

DISCONNECT: Final = "shoal.disconnect"
"""The name of the extension by which a server tells that a client has left."""

GUARDED: Final = "shoal.guarded"
"""The name of the extension of a host that has checked hosts and origins itself."""

TRACE: Final = "shoal.trace"
"""The key of a scope under which the ids of the request's trace and span are."""
