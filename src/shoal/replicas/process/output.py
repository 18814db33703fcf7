"""The output of a worker process: read as it is written, stored, and logged line by line."""

from __future__ import annotations

import os
from collections import deque
from typing import IO, TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    import logging

_CHUNK: Final = 2**16
_LONGEST_LINE: Final = 2**14
_LAST: Final = 20
_MOST_LINES: Final = 200
"""How many lines of one read are processed."""
_MOST_AT_END: Final = 64


class Output:
    """The stdout or stderr of a worker. Its lines are stored in `beside`, if that is given."""

    def __init__(
        self,
        pipe: IO[bytes] | None,
        log: logging.Logger,
        tag: str,
        kept: int,
        *,
        beside: Output | None = None,
    ) -> None:
        assert pipe is not None
        self.lines: deque[str] = deque(maxlen=kept) if beside is None else beside.lines
        self._fd = pipe.fileno()
        self._log = log
        self._tag = tag
        self._last: deque[str] = deque(maxlen=_LAST)
        self._rest = b""  # the beginning of an incomplete line
        self._is_open = True
        os.set_blocking(self._fd, False)

    async def read(self) -> None:
        while self._is_open:
            await anyio.wait_readable(self._fd)
            self._read_once()

    def read_available(self) -> None:
        """Reads without waiting, when the worker has ended or not started."""
        for _ in range(_MOST_AT_END):  # a process that outlives the worker may write without end
            if not self._is_open or not self._read_once():
                break
        if self._rest:
            self._take(self._rest)
            self._rest = b""

    def last_lines(self) -> str:
        return "\n".join(self._last)

    def _read_once(self) -> bool:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._is_open = False
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(lines) > _MOST_LINES:  # logging them all would block the event loop
            self._take(b"(%d lines are left out: too much output)" % (len(lines) - _MOST_LINES))
        for line in lines[-_MOST_LINES:]:
            self._take(line)
        while len(self._rest) > _LONGEST_LINE:
            self._take(self._rest[:_LONGEST_LINE])
            self._rest = self._rest[_LONGEST_LINE:]
        return True

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.lines.append(text)
        self._last.append(text)
        self._log.info("%s: %s", self._tag, text)
