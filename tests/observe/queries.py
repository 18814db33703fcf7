"""The queries of the dashboard and of the alerts, and what they ask for."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "grafana"
DASHBOARD = FOLDER / "dashboard.json"
ALERTS = FOLDER / "alerts.yaml"
OF_PROMETHEUS = {"instance", "job"}
"""The labels that Prometheus adds."""
SELECTOR = re.compile(r"\b(?P<name>(?:shoal|process)_\w+|up)\b(?:\{(?P<matchers>[^}]*)\})?")
MATCHER = re.compile(r'(?P<label>\w+)\s*(?:=~|!~|!=|=)\s*"(?P<value>[^"]*)"')
BY = re.compile(r"\bby\s*\((?P<labels>[^)]*)\)\s*\(")


@dataclass(frozen=True)
class Query:
    where: str
    text: str
    shown: frozenset[str] = frozenset()

    def selectors(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yields each metric that is asked for, and the values that its labels must have."""
        return selectors(self.text)

    def flaws(self, there: Mapping[str, set[str]], words: Mapping[str, set[str]]) -> list[str]:
        """Returns what it asks for that does not exist."""
        found = []
        left: set[str] = set()
        for name, matchers in self.selectors():
            if name not in there:
                found.append(f"there is no {name}")
                continue
            left |= there[name]
            for label, value in matchers.items():
                if label not in there[name] | OF_PROMETHEUS:
                    found.append(f"{name} has no label {label}")
                allowed = words.get(f"{name}.{label}")
                if (
                    allowed is not None
                    and "$" not in value
                    and not allowed >= set(value.split("|"))
                ):
                    found.append(f"{name} has no {label}={value}")
        kept: set[str] = set()
        for by in BY.finditer(self.text):
            labels = {label.strip() for label in by["labels"].split(",")}
            kept |= labels
            for name, _ in selectors(_in_parentheses(self.text, by.end())):
                missing = labels - there.get(name, labels) - OF_PROMETHEUS
                found += [f"{name} has no label {label}" for label in missing]
        missing = self.shown - (kept or left | OF_PROMETHEUS)
        return found + [f"the legend shows {label}, which the result lacks" for label in missing]


def selectors(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    for found in SELECTOR.finditer(text):
        matchers = MATCHER.finditer(found["matchers"] or "")
        yield found["name"], {one["label"]: one["value"] for one in matchers}


def _in_parentheses(text: str, begin: int) -> str:
    depth = 1
    for end in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if not depth:
            return text[begin:end]
    raise AssertionError(f"a parenthesis is not closed: {text}")


def of_dashboard() -> list[Query]:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [
        Query(
            f"panel {panel['title']!r}",
            target["expr"],
            frozenset(re.findall(r"{{(\w+)}}", target["legendFormat"])),
        )
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]


def of_variables() -> list[tuple[str, str]]:
    """Returns the metric and the label of which each variable of the dashboard has the values."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = []
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            of = re.fullmatch(r"label_values\((\w+).*, (\w+)\)", variable["query"]["query"])
            assert of is not None
            found.append((of[1], of[2]))
    return found


def of_alerts() -> list[Query]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [
        Query(
            f"alert {rule['alert']}",
            rule["expr"],
            frozenset(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))),
        )
        for group in groups
        for rule in group["rules"]
    ]
