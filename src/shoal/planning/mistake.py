"""The error of a command: a mistake of its user, or a failure."""

from __future__ import annotations


class CommandError(ValueError):
    """A command can't be carried out; its message is one line, which says how to correct a mistake.

    Attributes:
        exit_code: The exit code of the command: 2 for a mistake in the command, 1 for any other.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
