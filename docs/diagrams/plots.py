"""Plots from the simulator: latency against load, and what `shoal tune` finds."""

from docs.diagrams.svg import WIDTH, box, line, svg, text
from shoal import BatchOptions, LatencyTarget
from shoal.planning import Linear, poisson, simulate
from shoal.planning.recordings import MeasuredRunTimes
from shoal.planning.tuning import Search

HANDLER = Linear(0.01, 0.0005)
RATES = (25, 50, 75, 100, 200, 400, 800, 1200, 1400)
REQUESTS = 1500
POLICIES = {
    "one at a time": ("#b4532a", BatchOptions(max_batch_size=1)),
    "no wait (default)": ("#1f5f99", BatchOptions(max_batch_size=64)),
    "wait 20 ms": ("#2f7d4f", BatchOptions(max_batch_size=64, batch_wait_timeout_s=0.02)),
    "p99 of 80 ms": (
        "#6b4fa0",
        BatchOptions(max_batch_size=64, adaptive=LatencyTarget(p99_s=0.08)),
    ),
}
MOST_S = 0.16


def latency() -> str:
    """The p99 under four policies, at more and more requests a second."""
    left, right, top, bottom = 44, WIDTH - 20, 78, 260

    def point(rate: float, seconds: float) -> tuple[float, float]:
        x = left + (right - left) * RATES.index(rate) / (len(RATES) - 1)
        return x, bottom - (bottom - top) * min(seconds, MOST_S) / MOST_S

    parts = []
    for nth, (name, (colour, options)) in enumerate(POLICIES.items()):
        x, y = 14 + 180 * (nth % 2), 20 + 20 * (nth // 2)
        parts.append(f'<rect x="{x}" y="{y - 8}" width="16" height="4" fill="{colour}"/>')
        parts.append(text(x + 22, y, name))
        points = []
        for rate in RATES:
            found = simulate(poisson(rate, REQUESTS / rate), options, HANDLER)
            points.append(point(rate, found.percentile_s(99)))
            if points[-1][1] <= top:
                break
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
    parts.append(text(14, 66, "p99, ms", "note"))
    for milliseconds in (0, 40, 80, 120, 160):
        y = point(RATES[0], milliseconds / 1e3)[1]
        parts.append(line((left, y), (right, y), kind="dashed"))
        parts.append(text(left - 6, y + 4, f"{milliseconds}", "end note"))
    parts += [text(point(rate, 0)[0], bottom + 16, f"{rate}", "mid note") for rate in RATES]
    parts.append(text(right, bottom + 32, "requests a second", "end note"))
    return svg(bottom + 44, "The p99 of four policies, at more and more requests a second", parts)


def tuned() -> str:
    """The highest rate of each pair of options that meets a target, as `shoal tune` ranks them."""
    sizes = (1, 4, 16, 64)
    runs_s = {float(size): (HANDLER(size),) * 5 for size in sizes}
    measured = MeasuredRunTimes(runs_s, HANDLER.fixed_s, HANDLER.per_item_s)
    search = Search(BatchOptions(), measured, rate=60, p99_s=0.08, requests=800)
    found = search.candidates(lambda _: None)
    shown = [one for one in found if one.meets_target][:8]
    most = max(one.up_to_rate for one in shown)
    parts = [
        text(12, 20, "size", "note"),
        text(52, 20, "wait", "note"),
        text(112, 20, "requests a second within a p99 of 80 ms", "note"),
    ]
    for nth, one in enumerate(shown):
        y = 42 + 24 * nth
        wide = 200 * one.up_to_rate / most
        parts.append(text(12, y, f"{one.max_batch_size}", "head" if nth == 0 else ""))
        parts.append(text(52, y, f"{one.batch_wait_timeout_s * 1e3:g} ms"))
        parts.append(box(112, y - 13, wide, 18, "run" if nth == 0 else "idle"))
        parts.append(text(118 + wide, y, f"{float(f'{one.up_to_rate:.2g}'):,.0f}"))
    y = 42 + 24 * len(shown)
    missed = len(found) - sum(one.meets_target for one in found)
    parts.append(text(12, y + 2, f"The first line is the advice. {missed} pairs miss it.", "note"))
    return svg(y + 14, "What shoal tune finds: the best pairs of size and wait", parts)
