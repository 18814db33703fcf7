"""A server of an application of these tests in a process of its own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def described_server(name: str, *options: str) -> Iterator[str]:
    """Serves an application; yields its address."""
    spec = name if ":" in name else f"described_app:{name}"
    command = [sys.executable, "-m", "shoal", "serve", spec, "--port", "0"]
    with subprocess.Popen(
        [*command, *options],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        said = []
        try:
            assert server.stdout is not None
            for line in server.stdout:
                said.append(line)
                if found := re.search(r"http://\S+", line):
                    yield found[0]
                    break
            else:
                raise AssertionError("it ended before it served:\n" + "".join(said))
        finally:
            server.terminate()
            server.stdout.read()
