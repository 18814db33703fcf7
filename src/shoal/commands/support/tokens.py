"""Reads the operator's token from a file that contains only the token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.planning.mistake import CommandError

if TYPE_CHECKING:
    from argparse import Namespace


def add_token_argument(group: Any, summary: str) -> None:
    """Adds ``--token-file``."""
    group.add_argument("--token-file", type=Path, metavar="FILE", help=summary)


def token_of(arguments: Namespace) -> str | None:
    """Returns the token in the file given by ``--token-file``; None if it was not given.

    The token itself is not an argument, because all users of a machine can see the arguments of a
    process.

    Raises:
        CommandError: The file can't be read, or does not contain one token.
    """
    path: Path | None = arguments.token_file
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"can't read {path}: {getattr(error, 'strerror', error)}") from None
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise CommandError(
            f"{path} must contain one token: printable ASCII characters, without spaces"
        )
    return token
