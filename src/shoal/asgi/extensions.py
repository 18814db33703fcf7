"""The names of the extensions of ASGI that Shoal's servers offer and its application uses."""

from typing import Final

# A mapping with which a server reports a client's disconnect.
DISCONNECT: Final = "shoal.disconnect"

# The same mapping, offered by a server whose front ends decode items and encode results.
DECODED: Final = "shoal.decoded"

# Offered by a server that has checked hosts and origins itself.
GUARDED: Final = "shoal.guarded"

# In a scope: the ids of the request's trace and span.
TRACE: Final = "shoal.trace"
