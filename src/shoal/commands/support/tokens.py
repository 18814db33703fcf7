"""The operator's token, from a file that holds it and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.planning.mistake import CommandError

if TYPE_CHECKING:
    from argparse import Namespace


def add_token_argument(group: Any, says: str) -> None:
    """Describes ``--token-file``."""
    group.add_argument("--token-file", type=Path, metavar="FILE", help=says)


def token_of(arguments: Namespace) -> str | None:
    """Returns the token in the file that was named; None if none was.

    A token is no argument itself: what a process was started with, all users of a machine can see.

    Raises:
        Mistake: The file can't be read, or is empty.
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
            f"{path} must hold one token: printable ASCII characters, without spaces"
        )
    return token
