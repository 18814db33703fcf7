"""A report that compares options, as one HTML file with plots; needs ``shoal[plot]``.

The file is self-contained: the plots are SVG within it, there is no script, and its policy forbids
loading anything. Plots are drawn once, for light and dark: the colors of text and axes are replaced
by variables of the style sheet.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from shoal.core.batch import DispatchReason
from shoal.planning.figures import duration, percentile, rows_of, three_digits
from shoal.planning.plots import REASON_COLORS, new_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from shoal.planning.figures import Case
    from shoal.planning.recordings import MeasuredRunTimes, RecordedBatch

# Colors that nothing else has, for what the style sheet decides.
_INK: Final = "#010203"
_FAINT: Final = "#040506"
_VARIABLES: Final = {_INK: "var(--ink)", _FAINT: "var(--faint)"}
# Readable on white and on black.
_CASES: Final = ("#7f8790", "#1596a6", "#d9843b", "#9b7bc4", "#cf5470", "#6f9f4a", "#b09030")
_ENDS: Final = (
    ("rejected", "#cf5470"),
    ("shed", "#d9843b"),
    ("expired", "#9b7bc4"),
    ("failed", "#7f8790"),
    ("cancelled", "#b09030"),
)
_MOST_CASES: Final = len(_CASES)
_POINTS: Final = 400
_MOMENTS: Final = 120
_SHOWN_RUNS: Final = 2_000

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark;
  --paper: #fff; --ink: #1f2933; --faint: #b8c0c8; --shade: #f3f5f7 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181c; --ink: #dde3e8; --faint: #56606a; --shade: #1e242a }
}
body { background: var(--paper); color: var(--ink); margin: 2rem auto; max-width: 68rem;
  padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid var(--faint) }
thead + tbody > tr > * { white-space: nowrap }
th:first-child { text-align: left; font-weight: 500 }
thead th { font-weight: 600; vertical-align: bottom }
code { background: var(--shade); padding: .1rem .3rem; border-radius: 3px }
svg { width: 100%; height: auto }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem }
figure { margin: 0 } figcaption { font-weight: 600 }
"""


@dataclass(frozen=True)
class Report:
    title: str
    facts: Sequence[tuple[str, str]]  # about the traffic and the handler: names and texts
    cases: Sequence[Case]
    arrived_at: Sequence[float]  # ascending, in seconds
    batches: Sequence[RecordedBatch]  # measured ones
    run_times: Callable[[float], float] | MeasuredRunTimes
    remarks: Sequence[str] = ()  # sentences for the reader


def write_report(report: Report, path: Path) -> None:
    path.write_text(report_page(report), encoding="utf-8")


def _printable(text: str) -> str:
    """Replaces control characters and other unprintable ones."""
    return "".join([one if one.isprintable() else "\ufffd" for one in text])


def report_page(report: Report) -> str:
    all_cases = [
        replace(case, name=_printable(case.name), options=_printable(case.options))
        for case in report.cases
    ]
    cases = all_cases[:_MOST_CASES]
    title = _printable(report.title)
    plots: list[tuple[str, Callable[[Any], None]]] = [
        ("Latency of answered requests", lambda axes: _draw_latency(axes, cases)),
        ("Latency by percentile", lambda axes: _draw_percentiles(axes, cases)),
        ("Sizes of batches", lambda axes: _draw_sizes(axes, cases)),
        ("Why batches were dispatched", lambda axes: _draw_reasons(axes, cases)),
        ("Requests without an answer", lambda axes: _draw_ends(axes, cases)),
        ("Traffic", lambda axes: _draw_traffic(axes, report.arrived_at)),
        ("Run time of the handler", lambda axes: _draw_runs(axes, report, cases)),
    ]
    figures = [
        f"<figure><figcaption>{caption}</figcaption>{_svg(draw, str(number))}</figure>"
        for number, (caption, draw) in enumerate(plots)
    ]
    facts = [
        f"<tr><th>{escape(name)}</th><td>{escape(_printable(text))}</td></tr>"
        for name, text in report.facts
    ]
    remarks = [f"<p>{escape(_printable(one))}</p>" for one in report.remarks]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *remarks,
        f'<div class="wide"><table>{"".join(facts)}</table></div>',
        "<h2>Compared</h2>",
        f'<div class="wide">{_table(all_cases)}</div>',
        "<h2>Options</h2><dl>",
        *(
            f"<dt>{escape(case.name)}</dt><dd><code>{escape(case.options)}</code></dd>"
            for case in all_cases
        ),
        "</dl><h2>Plots</h2>",
        f'<div class="plots">{"".join(figures)}</div>',
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _table(cases: Sequence[Case]) -> str:
    heads = "".join(f"<th>{escape(case.name)}</th>" for case in cases)
    rows = [
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(one)}</td>' for one in texts)}</tr>"
        for name, texts in rows_of(cases)
    ]
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _svg(draw: Callable[[Any], None], salt: str) -> str:
    """Returns a plot as SVG for HTML; `salt` makes its ids differ from those of other plots."""
    figure = new_figure(6.2)
    import matplotlib as mpl

    library: Any = mpl
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "text.parse_math": False,  # names may have dollar signs
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": _FAINT,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": _FAINT,
        "legend.labelcolor": _INK,
        "font.family": "sans-serif",
    }
    with library.rc_context(settings):
        axes = figure.subplots()
        draw(axes)
        axes.set_facecolor("none")
        axes.grid(alpha=0.4)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=8)
        written = StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    # Ids are unique within one plot only.
    svg = re.sub(r'\bid="', f'id="p{salt}-', svg)
    return re.sub(r'(href="|url\()#', rf"\1#p{salt}-", svg)


def _colored(cases: Sequence[Case]) -> Iterable[tuple[Case, str]]:
    return zip(cases, _CASES, strict=False)


def _draw_latency(axes: Any, cases: Sequence[Case]) -> None:
    least, most = math.inf, 0.0
    for case, color in _colored(cases):
        ordered = sorted(case.latency_s)
        if not ordered:
            continue
        last = len(ordered) - 1
        indices = sorted({round(at * last / _POINTS) for at in range(_POINTS + 1)})
        heights = [(index + 1) / len(ordered) for index in indices]
        axes.plot([ordered[at] * 1e3 for at in indices], heights, color=color, label=case.name)
        least, most = min(least, ordered[0]), max(most, ordered[-1])
    if most > 20 * least > 0:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="milliseconds", ylabel="share answered within", ylim=(0, 1.02))


def _draw_percentiles(axes: Any, cases: Sequence[Case]) -> None:
    names = ("p50", "p90", "p99", "p99.9")
    width = 0.8 / max(1, len(cases))
    for place, (case, color) in enumerate(_colored(cases)):
        heights = [case.latency.get(name, 0.0) * 1e3 for name in names]
        at = [index - 0.4 + (place + 0.5) * width for index in range(len(names))]
        axes.bar(at, heights, width * 0.92, color=color, label=case.name)
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="milliseconds")


def _draw_sizes(axes: Any, cases: Sequence[Case]) -> None:
    for case, color in _colored(cases):
        ordered = sorted(case.sizes)
        if not ordered:
            continue
        last = len(ordered) - 1
        indices = sorted({round(at * last / _POINTS) for at in range(_POINTS + 1)})
        shares = [(index + 1) / len(ordered) for index in indices]
        label = f"{case.name}: {three_digits(case.mean_batch)} on average"
        axes.step([ordered[at] for at in indices], shares, where="post", color=color, label=label)
    axes.set(xlabel="requests in a batch", ylabel="share of batches up to that", ylim=(0, 1.02))


def _draw_reasons(axes: Any, cases: Sequence[Case]) -> None:
    _draw_stacks(
        axes,
        cases,
        [(str(reason), color) for reason, color in REASON_COLORS.items()],
        lambda case, name: case.reasons.get(DispatchReason(name), 0) / max(1, len(case.sizes)),
    )
    axes.set(ylabel="share of batches")


def _draw_ends(axes: Any, cases: Sequence[Case]) -> None:
    _draw_stacks(axes, cases, _ENDS, lambda case, name: float(case.count(name)))
    axes.set(ylabel="requests")
    if not any(case.count(*[name for name, _ in _ENDS]) for case in cases):
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center")


def _draw_stacks(
    axes: Any,
    cases: Sequence[Case],
    kinds: Sequence[tuple[str, str]],
    height: Callable[[Case, str], float],
) -> None:
    below = [0.0] * len(cases)
    for name, color in kinds:
        heights = [height(case, name) for case in cases]
        if not any(heights):
            continue
        axes.bar(range(len(cases)), heights, 0.6, bottom=below, color=color, label=name)
        below = [one + more for one, more in zip(below, heights, strict=True)]
    axes.set_xticks(range(len(cases)), [case.name for case in cases])
    axes.set_ylim(0, max(below, default=0.0) * 1.3 or 1.0)  # room for the legend


def _draw_traffic(axes: Any, arrived_at: Sequence[float]) -> None:
    lasted_s = arrived_at[-1] - arrived_at[0]
    step_s = lasted_s / _MOMENTS or 1.0
    counts = [0] * _MOMENTS
    for at in arrived_at:
        counts[min(_MOMENTS - 1, int((at - arrived_at[0]) / step_s))] += 1
    moments = [(moment + 0.5) * step_s for moment in range(_MOMENTS)]
    axes.plot(moments, [count / step_s for count in counts], color=_CASES[1])
    axes.set(xlabel="seconds", ylabel="requests a second", ylim=(0, None))


def _draw_runs(axes: Any, report: Report, cases: Sequence[Case]) -> None:
    batches = report.batches
    step = math.ceil(len(batches) / _SHOWN_RUNS) or 1
    shown = batches[::step]
    if shown:
        axes.plot(
            [batch.load for batch in shown],
            [batch.run_s * 1e3 for batch in shown],
            ".",
            color=_CASES[0],
            alpha=0.4,
            markersize=4,
            label="measured",
        )
        # One stall of the machine must not make all others a line at the bottom.
        ordered = sorted(batch.run_s for batch in batches)
        axes.set_ylim(0, max(percentile(ordered, 99) * 2e3, 1e-6))
    simulated = [max(case.sizes, default=1) for case in cases]
    largest = max([1.0, *[batch.load for batch in batches], *simulated])
    sizes = [1 + (largest - 1) * at / 100 for at in range(101)]
    axes.plot(
        sizes,
        [report.run_times(size) * 1e3 for size in sizes],
        color=_CASES[2],
        label=f"simulated; {duration(report.run_times(largest))} for {largest:g}",
    )
    axes.set(xlabel="size of a batch", ylabel="milliseconds")
