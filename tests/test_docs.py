"""The `python` blocks of the README, the tutorials and the guides, run as they stand.

A page's blocks are one module. A `text` block right after a `python` block is what it prints.
"""

import contextlib
import io
import itertools
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    path
    for path in [
        ROOT / "README.md",
        ROOT / "docs" / "index.md",
        *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
        *sorted((ROOT / "docs" / "how-to").glob("*.md")),
        ROOT / "docs" / "discussion" / "replicas.md",
        ROOT / "docs" / "reference" / "timeouts.md",
    ]
    if "```python\n" in path.read_text(encoding="utf-8")
]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Source to run, the line of the page that it starts on, and what the page says it prints."""

    source: str
    line: int
    output: str | None


def blocks_of(page: str) -> list[Block]:
    fences = list(FENCE.finditer(page))
    blocks = []
    for fence, following in itertools.pairwise([*fences, None]):
        if fence["language"] != "python":
            continue
        shown = (
            following is not None
            and following["language"] == "text"
            and not page[fence.end() : following.start()].strip()
        )
        line = page.count("\n", 0, fence.start("body"))
        blocks.append(Block(fence["body"], line, following["body"] if shown else None))
    return blocks


def run_page(name: str, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks_of(page):
        printed = io.StringIO()
        # Blank lines in front make tracebacks point at the page's own lines.
        code = compile("\n" * block.line + block.source, name, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, module.__dict__)
        if block.output is not None:
            assert printed.getvalue() == block.output, f"{name}, the block at line {block.line}"


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_does_what_it_says(path, monkeypatch):
    run_page(str(path), path.read_text(encoding="utf-8"), monkeypatch)


def test_contributing_names_files_that_exist():
    names = re.findall(r"`([\w./-]+/[\w./-]+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert len(names) > 30
    missing = [
        name
        for name in names
        if not (ROOT / name).exists() and not (ROOT / "src" / "shoal" / name).exists()
    ]
    assert missing == []


def test_a_block_that_prints_something_else_fails_its_page(monkeypatch):
    with pytest.raises(AssertionError):
        run_page("page.md", "```python\nprint(1)\n```\n\n```text\n2\n```\n", monkeypatch)
