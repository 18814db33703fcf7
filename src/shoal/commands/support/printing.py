"""Prints results of commands: as JSON for programs, as lines or tables for people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shoal.commands.support.planning import print_out

if TYPE_CHECKING:
    from argparse import Namespace


def print_data(data: Any) -> None:
    """Prints JSON."""
    print_out(json.dumps(data, indent=2, ensure_ascii=False))


def confirm(arguments: Namespace, done: str) -> int:
    """Reports that a change was made; returns the exit code."""
    if arguments.json:
        print_data({"done": done})
    else:
        print_out(done)
    return 0
