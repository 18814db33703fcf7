"""What a loaded server exposes: checked by promtool, and against all that asks for it.

The queries of the dashboard and of the alerts, and the page of the reference, name what exists. A
real Prometheus that scrapes the server answers them.
"""

import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import yaml
from loaded_server import OPENMETRICS, loaded_server
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from queries import ALERTS, FOLDER, OF_PROMETHEUS, Query, of_alerts, of_dashboard, of_variables

from shoal.core.histogram import OUTCOMES
from shoal.core.request import DispatchReason
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing: apt-get install prometheus"
)
WORDS = {
    "shoal_request_seconds_count.outcome": set(OUTCOMES),
    "shoal_request_seconds_bucket.outcome": set(OUTCOMES),
    "shoal_request_seconds_count.protocol": {
        *("json", "oip", "openai", "websocket", "python", "other")
    },
    "shoal_requests_total.outcome": {
        *("finished", "failed", "cancelled", "expired", "rejected", "shed")
    },
    "shoal_batches_total.reason": set(DispatchReason),
    "shoal_replicas.state": {"starting", "ready", "draining", "stopping"},
}
PROMETHEUS = shutil.which("prometheus")


def needs_prometheus(test):
    missing = pytest.mark.skipif(PROMETHEUS is None, reason="apt-get install prometheus")
    return pytest.mark.slow(missing(test))


@pytest.fixture(scope="module")
def server():
    with loaded_server() as server:
        yield server


@pytest.fixture(scope="module")
def families(server):
    return list(parse(server.scrape()))


@pytest.fixture(scope="module")
def there(families):
    """The labels of each metric."""
    found = {"up": set()}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@needs_promtool
def test_promtool_finds_nothing_wrong(server):
    text = server.scrape()
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_strict_parser_reads_the_openmetrics(server):
    samples = [s for f in openmetrics(server.scrape(OPENMETRICS)) for s in f.samples]
    counted = [s for s in samples if s.name == "shoal_request_seconds_count"]
    assert "lengths" in {s.labels["endpoint"] for s in counted}


def test_requests_are_counted_by_endpoint_protocol_and_outcome(families):
    counted = {
        tuple(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name == "shoal_request_seconds_count"
    }
    assert {key: n for key, n in counted.items() if key[0] != "-"} == {
        ("all", "ok", "json"): 1,
        ("doubled", "ok", "oip"): 1,
        ("doubled", "ok", "python"): 1,
        ("lengths", "failed", "json"): 1,
        ("lengths", "invalid", "json"): 1,
        ("lengths", "ok", "json"): 3,
        ("shared", "ok", "json"): 2,
        ("write", "ok", "json"): 2,
        ("write", "ok", "openai"): 1,
    }


def test_the_sockets_are_counted(families):
    found = {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("listener") == "main"
    }
    assert found["shoal_connections"] == found["shoal_accepted_connections_total"] == 1
    assert found["shoal_connection_limit"] == 1000
    assert found["shoal_received_bytes_total"] > 1000
    assert found["shoal_sent_bytes_total"] > 1000


def test_the_processes_of_workers_are_measured_as_that_of_the_server_is(families):
    found = {
        sample.name: (sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if sample.name.startswith("shoal_worker_")
    }
    assert {name: labels for name, (labels, _) in found.items()} == {
        f"shoal_worker_{name}": {"worker": "1"}
        for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds")
    }
    assert 0 < found["shoal_worker_cpu_seconds_total"][1] < 1000
    assert 2**20 < found["shoal_worker_resident_memory_bytes"][1] < 2**33
    assert 3 < found["shoal_worker_open_fds"][1] < found["shoal_worker_max_fds"][1]


def test_no_label_is_more_than_those_that_are_known(there):
    assert set().union(*there.values()) == {
        *("backend", "endpoint", "le", "listener", "method", "outcome", "protocol", "reason"),
        *("replica", "state", "worker"),
    }


@pytest.mark.parametrize("query", [*of_dashboard(), *of_alerts()], ids=lambda query: query.where)
def test_what_a_query_asks_for_exists(query, there):
    assert query.flaws(there, WORDS) == []


def test_the_variables_of_the_dashboard_exist(there):
    for name, label in of_variables():
        assert label in there[name] | OF_PROMETHEUS


def test_the_dashboard_and_the_alerts_ask_for_all_there_is(families):
    asked = {name for query in (*of_dashboard(), *of_alerts()) for name, _ in query.selectors()}
    unasked = [f.name for f in families if not asked.intersection({s.name for s in f.samples})]
    assert sorted(unasked) == ["process_start_time_seconds", "process_virtual_memory_bytes"]


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("rate(shoal_request_total[5m])", "there is no shoal_request_total"),
        ('shoal_replicas{backends="x"}', "shoal_replicas has no label backends"),
        ('shoal_replicas{state=~"ready|red"}', "shoal_replicas has no state=ready|red"),
        ("sum by (endpoint) (shoal_replicas)", "shoal_replicas has no label endpoint"),
        ("sum by (state) (shoal_replicas)", "the legend shows backend, which the result lacks"),
    ],
)
def test_a_planted_flaw_is_found(text, flaw, there):
    assert Query("planted", text, frozenset({"backend"})).flaws(there, WORDS)[0] == flaw


def test_the_reference_has_all_metrics_and_no_other(families):
    page = REFERENCE.read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `((?:shoal|process)_\w+)` \|", page, re.MULTILINE))
    suffix = {"counter": "_total"}
    exposed = {
        family.name + suffix.get(family.type, "")
        for family in families
        if not family.name.startswith("process_")
    }
    # This server has no GPU, and is no model server.
    others = {name for name in told if "_gpu" in name or "_model_server_" in name}
    assert {name for name in told if name.startswith("shoal_")} - others == exposed


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", ALERTS), ("check", "config", FOLDER / "prometheus.yaml")],
    ids=["rules", "config"],
)
def test_promtool_accepts_the_files(arguments):
    checked = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_promtool_understands_each_query_of_the_dashboard(tmp_path):
    texts = [query.text.replace("$__rate_interval", "30s") for query in of_dashboard()]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(texts)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    test_promtool_accepts_the_files(("check", "rules", file))


# A probe is told that the server is not ready: no endpoint refuses anything.
TESTS_OF_ALERTS = """
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
  - series: shoal_request_seconds_count{instance="a",endpoint="e",protocol="json",outcome="ok"}
    values: 0+60x20
  - series: shoal_request_seconds_count{instance="a",endpoint="e",protocol="json",outcome="failed"}
    values: 0+60x3 180x17
  - series: 'shoal_request_seconds_count{instance="a",endpoint="-",outcome="unavailable"}'
    values: 0+60x20
  - series: 'shoal_replicas{instance="a", backend="b", state="ready"}'
    values: 1x20
  - series: 'shoal_wanted_replicas{instance="a", backend="b"}'
    values: 2x20
  alert_rule_test:
  - {alertname: ShoalRequestsFail, eval_time: 4m, exp_alerts: []}
  - {alertname: ShoalRequestsUnavailable, eval_time: 15m, exp_alerts: []}
  - alertname: ShoalReplicasMissing
    eval_time: 15m
    exp_alerts:
    - exp_labels: {severity: warning, instance: a, backend: b}
      exp_annotations:
        summary: b has only 1 ready replicas
        description:
          Fewer than wanted for 10 minutes; `shoal status` shows why the last one failed.
"""


@needs_promtool
@pytest.mark.slow
def test_an_alert_is_raised_by_what_it_is_about_and_by_nothing_else(tmp_path):
    """Runs three of the alerts over made-up series."""
    file = tmp_path / "tests.yaml"
    file.write_text(f"rule_files: [{ALERTS}]{TESTS_OF_ALERTS}", encoding="utf-8")
    test_promtool_accepts_the_files(("test", "rules", file))


def test_each_alert_has_a_section_in_the_runbook():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "act-on-an-alert.md"
    head, runbook = page.read_text(encoding="utf-8").split("## Act on an alert\n")
    assert "alerts.yaml" in head
    _, *sections = re.split(r"^### ", runbook, flags=re.MULTILINE)
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    assert [section.split("\n", 1)[0] for section in sections] == alerts
    for section in sections:
        assert re.findall(r"^\*\*(.*?):\*\* ", section, re.MULTILINE) == ["Means", "Look at", "Do"]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory, free_tcp_port_factory):
    """A client of one that has scraped a server under load."""
    folder = tmp_path_factory.mktemp("prometheus")
    address = f"127.0.0.1:{free_tcp_port_factory()}"
    with loaded_server() as server:
        target = server.url.removeprefix("http://")
        job = {"job_name": "shoal", "metrics_path": "/-/metrics"}
        config = {
            "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{**job, "static_configs": [{"targets": [target]}]}],
        }
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [
            *(PROMETHEUS, f"--config.file={file}", f"--storage.tsdb.path={folder}/data"),
            *(f"--web.listen-address={address}", "--log.level=warn"),
        ]
        with (
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one,
            httpx.Client(
                base_url=f"http://{address}/api/v1", timeout=HANG_S, trust_env=False
            ) as client,
        ):
            try:
                until = time.monotonic() + HANG_S
                while scrapes(client) < 6:
                    assert time.monotonic() < until, "it has not scraped the server"
                    server.load()
                yield client
            finally:
                one.terminate()


def scrapes(client):
    """How many times the server was scraped under load."""
    try:
        text = 'max(count_over_time(shoal_request_seconds_count{endpoint="all"}[1m]))'
        result = asked(client, text)
    except httpx.TransportError:
        time.sleep(0.1)
        return 0
    return int(result[0]["value"][1]) if result else 0


def asked(client, text):
    answer = client.get("/query", params={"query": text})
    if answer.status_code == 503:  # it starts
        return []
    found = answer.json()
    assert found["status"] == "success", f"{text}: {found}"
    return found["data"]["result"]


def asked_again(find):
    """What it finds at last: a scrape that takes too long hides all values until the next one."""
    until = time.monotonic() + HANG_S
    while not (found := find()) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def filled_in(text):
    for variable in ("instance", "job", "endpoint", "backend"):
        text = text.replace(f'"${variable}"', '".*"')
    return text.replace("$__rate_interval", "30s")


@needs_prometheus
def test_the_server_is_scraped_without_an_error(prometheus):
    def is_up():
        [target] = prometheus.get("/targets").json()["data"]["activeTargets"]
        return (target["health"], target["lastError"]) == ("up", "")

    assert asked_again(is_up)


@needs_prometheus
@pytest.mark.parametrize("query", of_dashboard(), ids=lambda query: query.where)
def test_a_panel_has_data(query, prometheus):
    assert asked_again(lambda: asked(prometheus, filled_in(query.text)))


@needs_prometheus
@pytest.mark.parametrize("query", of_alerts(), ids=lambda query: query.where)
def test_an_alert_can_be_evaluated(query, prometheus):
    asked(prometheus, query.text)


@needs_prometheus
def test_the_rules_are_healthy(prometheus):
    groups = prometheus.get("/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(of_alerts())
    assert {rule["health"] for rule in rules} == {"ok"}
