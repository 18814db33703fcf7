"""Files of `examples/deploy` and of CI against their tools and schemas."""

import configparser
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(*command: str, **more: Any) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def tool(name: str) -> str:
    """Returns the path of a command that is installed beside Python."""
    return str(Path(sys.executable).parent / name)


def option(words: list[str], name: str) -> str | None:
    """Returns the value of an option that is written as two words or as one."""
    for place, word in enumerate(words):
        if word == name:
            return words[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def read_unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(path.read_text().replace("\\\n", " "))
    return parser


def verify_units(folder: Path, copies: Path) -> None:
    """Lets systemd check the units of a folder, with another program in place of Shoal."""
    for path in folder.iterdir():
        text = path.read_text().replace("/srv/shoal/.venv/bin/shoal", sys.executable)
        (copies / path.name).write_text(text)
    ran = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(copies.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in ran.stderr.splitlines() if "shoal" in line]
    assert (ran.returncode, ours) == (0, [])


def check_schema(name: str, *paths: Path) -> None:
    """Fails where a file does not fit a schema of check-jsonschema.

    It runs in the tests' process, which has its imports.
    """
    from check_jsonschema import main
    from click.testing import CliRunner

    ran = CliRunner().invoke(main, ["--builtin-schema", name, *map(str, paths)])
    assert ran.exit_code == 0, ran.output
