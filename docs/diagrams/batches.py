"""How batches are formed: by a timer and by Shoal's rule, closed and continuous."""

from docs.diagrams.svg import WIDTH, box, dot, svg, text
from shoal import BatchOptions
from shoal.core.simulation import simulate

RUN_S = 0.04
WINDOW_S = 0.01
# Seconds. A burst, then single requests, as from independent callers.
ARRIVALS = [0.0, 0.004, 0.013, 0.016, 0.024, 0.027, 0.036, 0.047, 0.05, 0.061, 0.066, 0.078]
END_S = 0.2
Runs = list[tuple[float, int]]


def by_timer() -> Runs:
    """A batch closes ten milliseconds after its first request, even while the handler is busy."""
    closed: list[tuple[float, int]] = []
    for arrival in ARRIVALS:
        if closed and arrival <= closed[-1][0]:
            closed[-1] = (closed[-1][0], closed[-1][1] + 1)
        else:
            closed.append((arrival + WINDOW_S, 1))
    runs: Runs = []
    for at, size in closed:
        free_at = runs[-1][0] + RUN_S if runs else 0.0
        runs.append((max(at, free_at), size))
    return runs


def by_shoal() -> Runs:
    found = simulate(ARRIVALS, BatchOptions(max_batch_size=16), lambda _: RUN_S)
    return [(batch.dispatched_at, len(batch.requests)) for batch in found.batches]


def rules() -> str:
    """The same requests under a timer and under Shoal's rule."""
    left, scale = 12, (WIDTH - 24) / 0.29

    def at(seconds: float) -> float:
        return left + seconds * scale

    parts = [text(left, 20, "Requests arrive", "head")]
    parts += [dot(at(arrival), 34) for arrival in ARRIVALS]
    for y, heading, runs in (
        (62, "A timer closes a batch after 10 ms", by_timer()),
        (132, "Shoal: a free handler takes all that wait", by_shoal()),
    ):
        parts.append(text(left, y, heading, "head"))
        for start, size in runs:
            parts.append(box(at(start), y + 8, RUN_S * scale - 2, 24, "run"))
            parts.append(text(at(start + RUN_S / 2) - 1, y + 24, f"{size}", "mid"))
        end_s = runs[-1][0] + RUN_S
        parts.append(
            text(left, y + 48, f"{len(runs)} runs of 40 ms, done at {end_s * 1e3:.0f} ms", "note")
        )
    title = "Twelve requests: a timer makes more and smaller batches than Shoal's rule"
    return svg(190, title, parts)


LENGTHS = [3, 9, 4, 2, 5, 3, 6, 4]
PLACES = 4


def closed_steps() -> list[tuple[int, int, int, int]]:
    """The place, first step and length of each request, and the steps its place is held."""
    found, start = [], 0
    for first in range(0, len(LENGTHS), PLACES):
        group = LENGTHS[first : first + PLACES]
        found += [(place, start, length, max(group)) for place, length in enumerate(group)]
        start += max(group)
    return found


def continuous_steps() -> list[tuple[int, int, int, int]]:
    free = [0] * PLACES
    found = []
    for length in LENGTHS:
        place = free.index(min(free))
        found.append((place, free[place], length, length))
        free[place] += length
    return found


def continuous() -> str:
    """Texts of different lengths in closed batches and in a continuous one."""
    left, step, row = 12, 22, 20
    parts = []
    y = 20
    for heading, steps in (
        ("Closed: a batch lasts as long as its longest text", closed_steps()),
        ("Continuous: a place is free at once", continuous_steps()),
    ):
        parts.append(text(left, y, heading, "head"))
        for place, start, length, held in steps:
            x, top = left + step * start, y + 8 + row * place
            if held > length:
                parts.append(box(x + step * length, top, step * (held - length) - 2, 16, "idle"))
            parts.append(box(x, top, step * length - 2, 16, "run"))
            parts.append(text(x + step * length / 2 - 1, top + 12, f"{length}", "mid"))
        last = max(start + held for _, start, _, held in steps)
        idle = sum(held - length for _, _, length, held in steps)
        note = f"8 texts in {last} steps; {idle} steps of places are idle"
        parts.append(text(left, y + 104, note, "note"))
        y += 134
    return svg(y - 20, "Eight texts in four places: closed batches and a continuous batch", parts)
