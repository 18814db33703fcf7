"""A model server: the backends of this server, for other Shoal servers that forward batches to it.

`listener` accepts and authenticates the connections; `ingress` serves one of them. The other end is
in `shoal.replicas.remote`, and the frames in `shoal.replicas.process.wire`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from shoal.asgi.http_options import HttpOptions
    from shoal.core.addresses import ModelServerAddress
    from shoal.serving.model_server.listener import BoundLike, ModelServerListener


def model_server(
    options: HttpOptions, bind: Callable[[ModelServerAddress], Sequence[BoundLike]]
) -> AbstractAsyncContextManager[ModelServerListener | None]:
    """Binds the address of the options, if there is one; `begin` serves there during the block.

    Raises:
        OSError: It can't listen there, or can't read the certificate.
        NotAllowed: The token can't be used.
    """
    if options.model_server is None:
        return nullcontext()
    from shoal.serving.model_server.listener import bound

    return bound(options, bind)
