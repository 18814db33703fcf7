"""What a worker process prints: read as it comes, kept, and logged line by line."""

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
"""How many lines are taken of one reading."""
_MOST_AT_END: Final = 64


class Output:
    """One pipe that a worker writes to.

    Args:
        pipe: Its read end.
        log: Where the lines go, at INFO.
        tag: What they are marked with.
        kept: How many lines are kept.
        beside: An output whose lines are to be kept together with these.
    """

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
        self._rest = b""  # of a line that has not come whole
        self._is_open = True
        os.set_blocking(self._fd, False)

    async def read(self) -> None:
        """Takes in what is written, until the pipe is closed."""
        while self._is_open:
            await anyio.wait_readable(self._fd)
            self._read_once()

    def read_at_hand(self) -> None:
        """Takes in what was written before the worker ended, or said that it can not start."""
        for _ in range(_MOST_AT_END):  # what outlives the worker may go on for ever
            if not self._is_open or not self._read_once():
                break
        if self._rest:
            self._take(self._rest)
            self._rest = b""

    def last_lines(self) -> str:
        """Returns the last lines, in one."""
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
        if len(lines) > _MOST_LINES:  # writing them all down would hold everything else up
            self._take(b"(%d lines of a flood are left out)" % (len(lines) - _MOST_LINES))
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
