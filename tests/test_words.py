"""One name for one thing: the words that Shoal does not use, and what it says instead.

Docs, docstrings, comments, messages and names are read alike. CONTRIBUTING has the glossary.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
READ = ("README.md", "CONTRIBUTING.md", "docs", "src", "examples", "benchmarks")
KINDS = {".py", ".md", ".rst", ".toml", ".html", ".js"}


class Word(NamedTuple):
    """A word that is not used.

    Attributes:
        pattern: What is looked for.
        say: What to say instead.
        but: What looks like it, and is allowed.
        stems: Whatever the pattern finds contains one of these, in lower case; the word itself by
            default. Most lines contain none, which is seen at once.
    """

    pattern: str
    say: str
    but: str = r"(?!)"
    stems: tuple[str, ...] = ()


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
        stems=("hurr", "urgency"),
    ),
    "cell": Word(r"\bcells?\b|Cell\b|_cells?\b", "waiter", r"table|cell_contents|row"),
    "company": Word(r"\bcompany\b|\bCompany\b", "other requests"),
    "terms": Word(
        r"\bwish(es)?\b|\bWishes\b|\bTerms\b|_terms\b",
        "call options",
        r"in terms of",
        stems=("wish", "terms"),
    ),
    "gate": Word(r"\bgates?\b|\bGate\b|_gate\b", "admission control"),
    "let in": Word(
        r"\blet_in\b|\b(let|lets|letting) in\b|\bcame_back\b",
        "admit, leave, return",
        stems=("let_in", "let in", "lets in", "letting in", "came_back"),
    ),
    "kept": Word(r"\bkept replica|\bKept\b", "managed replica"),
    "errand": Word(r"(?i)errand", "cancel token"),
    "way out": Word(r"\bWayOut\b|\bway_out\b", "parent channel", stems=("wayout", "way_out")),
    "post": Word(
        r"\b[Pp]arcels?\b|\bPost\b|\barenas?\b|\bArena\b|\barena_",
        "message; shared memory",
        stems=("parcel", "post", "arena"),
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
        "src/shoal/planning/traces.py",
        "src/shoal/commands/support/output.py",
    },
}


@functools.cache
def sources() -> list[tuple[str, list[tuple[str, str]]]]:
    """All that is read, by its path: each line, and the same in lower case."""
    found = []
    for start in READ:
        path = ROOT / start
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(ROOT).as_posix()
            if file.suffix in KINDS and "_build" not in name and name != "docs/changelog.md":
                found.append((name, lines_of(file.read_text(encoding="utf-8"))))
    return found


def lines_of(text: str) -> list[tuple[str, str]]:
    return [(line, line.lower()) for line in text.splitlines()]


def uses(lines: list[tuple[str, str]], name: str) -> Iterator[tuple[int, str]]:
    word = WORDS[name]
    pattern = re.compile(word.pattern)
    stems = word.stems or (name,)
    for number, (line, lowered) in enumerate(lines, 1):
        if not any(stem in lowered for stem in stems):
            continue
        if pattern.search(line) and pattern.search(re.sub(word.but, "", line)):
            yield number, line.strip()


@pytest.mark.parametrize("name", WORDS)
def test_a_word_that_shoal_does_not_use_is_nowhere(name):
    word = WORDS[name]
    found = [
        f"{source}:{number}: {line}"
        for source, lines in sources()
        if source not in ALLOWED.get(name, ())
        for number, line in uses(lines, name)
    ]
    assert not found, f"say {word.say}:\n" + "\n".join(found)


PLANTED = {
    "line": ["A request in line waits.", "A LinePolicy."],
    "cut": ["Why a batch was cut.", "A CutReason."],
    "hurry": ["In a hurry.", "The Urgency of a request."],
    "cell": ["A WaitCell."],
    "company": ["In company."],
    "terms": ["A wish.", "call_terms"],
    "gate": ["The Gate."],
    "let in": ["It lets in a request.", "let_in", "came_back"],
    "kept": ["A kept replica."],
    "errand": ["An Errand."],
    "way out": ["A WayOut.", "way_out"],
    "post": ["A Parcel.", "A Post.", "arena_size"],
    "order": ["A start order."],
    "door": ["The Door."],
    "so many": ["So many bytes."],
    "anew": ["It starts anew."],
    "told": ["It was told."],
    "as above": ["As above."],
    "what there is": ["It reads what there is."],
    "mighty": ["Almighty."],
}


def test_planted_words_are_seen():
    assert PLANTED.keys() == WORDS.keys()
    for name, texts in PLANTED.items():
        for planted in texts:
            assert [*uses(lines_of(f"x\n{planted}"), name)] == [(2, planted)]


def test_what_looks_like_a_word_is_allowed():
    assert [*uses(lines_of("Said in one line."), "line")] == []
    assert [*uses(lines_of("It is cut off."), "cut")] == []
