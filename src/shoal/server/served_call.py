"""What every call of an application has, whatever its client speaks: how it learns of its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from shoal.server.log_errors import contained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ServedCall(Mapping[str, Any]):
    """A call of an application, and what the server offers it beyond ASGI.

    It is itself the value of the extension `shoal.asgi.extensions.DISCONNECT`: a mapping, in which
    nothing is made for a request that does not ask for it.

    Attributes:
        offered: The keys of the extension, each of them the name of an attribute.
        is_over: Whether the client is gone, or was refused; what the application sends is dropped.
        is_complete: Whether the application has sent all of its answer.
        has_begun: Whether it has begun to.
        refusal: The status that the server has answered with in its place; or 0.
        refused_size: The size of the body of that answer, in bytes.
    """

    offered: tuple[str, ...] = (
        *("when_left", "is_cut_off", "refused_with", "send_timeout_s", "is_local"),
    )

    _shared: Any  # the state of the address

    # Most calls change none of these.
    is_over = is_complete = has_begun = False
    refusal = refused_size = 0
    _is_cut_off = False
    _on_left: Callable[[], object] | None = None

    def when_left(self, callback: Callable[[], object] | None) -> None:
        """Sets what is called once when the client leaves before the answer is complete.

        It is also called when the call is cut off; see `is_cut_off`. It is called at once
        if either has happened already. It must not raise, or take long.
        """
        self._on_left = callback
        if callback is not None and (self.is_over or self._is_cut_off):
            self._on_left = None
            callback()

    def is_cut_off(self) -> bool:
        """Whether the server ends, and waits a moment for the end of the answer."""
        return self._is_cut_off and not self.is_over

    def refused_with(self) -> int:
        """Returns the status that the server has answered with in place of the application."""
        return self.refusal

    @property
    def send_timeout_s(self) -> float:
        """How long the client may take to accept what it is sent, in seconds."""
        seconds: float = self._shared.send_timeout_s
        return seconds

    @property
    def is_local(self) -> bool:
        """Whether only clients on this machine can reach the server."""
        return bool(self._shared.is_local)

    @property
    def was_left(self) -> bool:
        """Whether the client has left before the end of the answer."""
        return self.is_over and not self.is_complete

    def _call_back(self) -> bool:
        """Tells the application of its client's leaving; returns whether it wants to know."""
        on_left, self._on_left = self._on_left, None
        if on_left is None or self.is_complete:
            return False
        with contained("a callback for the client's leaving failed"):
            on_left()
        return True

    # As the mapping.

    @override
    def __getitem__(self, name: str) -> Any:
        if name in self.offered:
            return getattr(self, name)
        raise KeyError(name)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.offered)

    @override
    def __len__(self) -> int:
        return len(self.offered)

    @override
    def __eq__(self, other: object) -> bool:
        return self is other  # and not what has equal items

    @override
    def __hash__(self) -> int:
        return id(self)
