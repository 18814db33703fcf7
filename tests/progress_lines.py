"""What a server says while it loads, which it does only where that takes longer than a second."""

import re

PROGRESS = re.compile(r"^Shoal (is importing|is loading|imported|loaded) .*\n", re.MULTILINE)


def first_line(stream):
    """The first line that a server says, but for those of its progress."""
    line = stream.readline()
    while PROGRESS.match(line):
        line = stream.readline()
    return line


def without_progress(said):
    return PROGRESS.sub("", said)
