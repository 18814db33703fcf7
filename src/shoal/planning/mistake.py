"""What the user of a command got wrong, or what went wrong in the user's code."""

from __future__ import annotations


class CommandError(ValueError):
    """The user's: the message tells it in one line, with what would be right.

    Attributes:
        exit_code: What the command ends with: 2 for a mistake in the command, 1 for anything else.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
