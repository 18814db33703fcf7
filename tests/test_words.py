"""One name for one thing: the words that Shoal does not use, and what it says instead.

Docs, docstrings, comments, messages and names are read alike. CONTRIBUTING has the glossary.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
READ = ("README.md", "CONTRIBUTING.md", "docs", "src", "examples", "benchmarks")
KINDS = {".py", ".md", ".rst", ".toml", ".html", ".js"}


class Word(NamedTuple):
    """A word that is not used.

    Attributes:
        pattern: What is looked for.
        say: What to say instead.
        but: What looks like it, and is allowed.
    """

    pattern: str
    say: str
    but: str = r"(?!)"


WORDS = {
    "line": Word(
        r"\bin (the |its |a |one |this |that )?line\b"
        r"|\b(leaves?|enters?|joins?) (the |its |a )?line\b"
        r"|\b(full|whole|empty|shared|waiting) line\b"
        r"|\b(line|lines) of (requests|a method|methods)\b"
        r"|\bstands? in line\b|LinePolicy|_line_policy|\bArrivalLine\b|\bin_line\b",
        "queue",
        r"in (one|a) line|command line|in line with|empty line",
    ),
    "cut": Word(
        r"\bcuts?\b|\bcutting\b|\bCutReason\b|\bCut\b|_cut\b|\bcut_",
        "form or dispatch a batch; dispatch reason",
        r"cuts? (off|back|short|in two)|cutting (off|back|short)|shortcut|drained\.cut"
        r"|\.cut\b|cut: int|    cut: |\bcut = |cut=self\.cut|\{cut\}",
    ),
    "hurry": Word(
        r"\bhurr(y|ies|ied)\b|\bUrgency\b|\burgency\b",
        "pressure, or what presses",
    ),
    "cell": Word(r"\bcells?\b|Cell\b|_cells?\b", "waiter", r"table|cell_contents|row"),
    "company": Word(r"\bcompany\b|\bCompany\b", "other requests"),
    "terms": Word(
        r"\bwish(es)?\b|\bWishes\b|\bTerms\b|_terms\b",
        "call options",
        r"in terms of",
    ),
    "gate": Word(r"\bgates?\b|\bGate\b|_gate\b", "admission control"),
    "let in": Word(
        r"\blet_in\b|\b(let|lets|letting) in\b|\bcame_back\b",
        "admit, leave, return",
    ),
    "kept": Word(r"\bkept replica|\bKept\b", "managed replica"),
    "errand": Word(r"(?i)errand", "cancel token"),
    "way out": Word(r"\bWayOut\b|\bway_out\b", "parent channel"),
    "post": Word(
        r"\b[Pp]arcels?\b|\bPost\b|\barenas?\b|\bArena\b|\barena_",
        "message; shared memory",
    ),
    "order": Word(r"\bOrder\(|an `Order`|start order", "start message"),
    "door": Word(r"(?i)\bdoors?\b|Door\b|_doors?\b", "admin listener"),
    "so many": Word(r"(?i)\bso many\b", "the number, or a number"),
    "anew": Word(r"(?i)\banew\b|Anew\b", "again"),
    "told": Word(r"\btold\b|\b_?told\(", "passed, reported, converted or notified"),
    "as above": Word(r"(?i)\bas above\b", "the fact itself"),
    "what there is": Word(r"(?i)\bwhat there is\b", "a noun"),
    "mighty": Word(r"(?i)mighty", "what is too large, and for what"),
}
# Where a word means what the field means by it.
ALLOWED = {
    "cell": {
        "docs/how-to/where-to-open.md",
        "src/shoal/planning/traces.py",
        "src/shoal/commands/support/output.py",
    },
}


@functools.cache
def sources() -> list[tuple[str, str]]:
    """All that is read, by its path."""
    found = []
    for start in READ:
        path = ROOT / start
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(ROOT).as_posix()
            if file.suffix in KINDS and "_build" not in name and name != "docs/changelog.md":
                found.append((name, file.read_text(encoding="utf-8")))
    return found


def uses(text: str, word: Word) -> Iterator[tuple[int, str]]:
    """Yields the number and the text of each line that uses a word."""
    pattern = re.compile(word.pattern)
    for match in pattern.finditer(text):
        number = text.count("\n", 0, match.start())
        line = text.splitlines()[number].strip()
        if pattern.search(re.sub(word.but, "", line)):
            yield number + 1, line


@pytest.mark.parametrize("name", WORDS)
def test_a_word_that_shoal_does_not_use_is_nowhere(name):
    word = WORDS[name]
    found = [
        f"{source}:{number}: {line}"
        for source, text in sources()
        if source not in ALLOWED.get(name, ())
        for number, line in uses(text, word)
    ]
    assert not found, f"say {word.say}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("line", "A LinePolicy.", True),
        ("line", "Said in one line.", False),
        ("cut", "Why a batch was cut.", True),
        ("cut", "It is cut off.", False),
        ("let in", "let_in", True),
        ("so many", "So many bytes.", True),
    ],
)
def test_a_word_is_told_from_what_looks_like_it(name, text, found):
    assert [*uses(f"x\n{text}\ny", WORDS[name])] == ([(2, text)] if found else [])
