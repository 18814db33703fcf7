"""What all handles have in common: the same handle, with options of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping


class Optioned(ABC):
    """A handle."""

    def options(
        self,
        *,
        method_name: str | None = None,
        shard_key: str | None = None,
        http_method: str | None = None,
        http_headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        priority: int | None = None,
    ) -> Self:
        """Returns the same handle with options of its own; see `Handle.options`."""
        given = {
            "method_name": method_name,
            "shard_key": shard_key,
            "http_method": http_method,
            "http_headers": http_headers,
            "timeout_s": timeout_s,
            "priority": priority,
        }
        return self._optioned({name: value for name, value in given.items() if value is not None})

    def remote(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Does what `call` does; Ray Serve's spelling."""
        return self.call(*args, **kwargs)

    @abstractmethod
    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""

    @abstractmethod
    def _optioned(self, given: dict[str, Any]) -> Self:
        """Returns the same handle with some options changed."""
