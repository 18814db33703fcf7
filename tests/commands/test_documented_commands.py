"""The commands and files that the documentation shows are ones that there are."""

import re
import shlex
from pathlib import Path

import pytest

from shoal.asgi.http_options import FILE_OPTIONS, FLAGGED, HttpOptions
from shoal.cli import _parser
from shoal.serving.app_file.file import read_app_file
from shoal.serving.app_file.server import NOT_ON_HYPERCORN

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands():
    for name, page in PAGES.items():
        for language, body in FENCE.findall(page):
            prompt = "$ " if language == "console" else ""
            if language in {"console", "sh", "bash", "shell"}:
                for line in body.replace("\\\n", " ").splitlines():
                    if line.startswith(f"{prompt}shoal "):
                        words = shlex.split(line.removeprefix(prompt), comments=True)
                        yield pytest.param(words[1:], id=f"{name}: {line}")


def files():
    for name, page in PAGES.items():
        for language, body in FENCE.findall(page):
            if language == "toml" and "[backends." in body:
                yield pytest.param(body, id=name)


@pytest.mark.parametrize("words", list(commands()))
def test_a_documented_command_is_understood(words):
    assert callable(_parser(words).parse_args(words).run)


@pytest.mark.parametrize("text", list(files()))
def test_a_documented_file_is_right(text, tmp_path):
    (tmp_path / "app.toml").write_text(text)
    assert read_app_file(tmp_path / "app.toml").backends


def test_the_options_that_hypercorn_lacks_are_documented():
    page = PAGES["how-to/run-in-production.md"]
    [lacks] = re.findall(r"^Hypercorn has no setting for (.*?)\.", page, re.MULTILINE | re.DOTALL)
    flags = {f"--{name.removesuffix('_s').replace('_', '-')}" for name in NOT_ON_HYPERCORN}
    assert set(re.findall("`(.*?)`", lacks)) == flags


def test_every_option_of_a_server_is_documented():
    page = PAGES["reference/command-line.md"]
    [keys] = re.findall(r"^\| `\[server\]` \| (.*) \|$", page, re.MULTILINE)
    named = set(re.findall("`(?!shoal)([a-z_]+)`", keys))
    assert named == {"event_loop", "server", "workers", *FILE_OPTIONS}
    for name in FILE_OPTIONS:
        if name in FLAGGED:
            value = getattr(HttpOptions, name)
            flag = f"--{name.removesuffix('_s').replace('_', '-')}"
            if isinstance(value, tuple):
                flag = flag.replace("allowed", "allow").removesuffix("s")
            row = rf"^\| `{flag}(?: [A-Z]+)?` \| (.*?) ?\|"
            [default] = re.findall(row, page, re.MULTILINE)
            if value in ((), None, ""):
                continue
            if value and isinstance(value, tuple):
                assert default.lower().replace("`", "") == ", ".join(value)
                continue
            assert default.strip("`") == (
                "off" if value is False else f"{value}".removesuffix(".0")
            )
