"""A real Prometheus that scrapes a loaded server, and answers what the dashboard asks."""

import shutil
import socket
import subprocess
import time

import httpx
import pytest
import yaml
from loaded_server import loaded_server
from queries import ALERTS, of_alerts, of_dashboard

from time_limits import HANG_S

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_time,
    pytest.mark.skipif(
        PROMETHEUS is None, reason="prometheus is missing: apt-get install prometheus"
    ),
]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """A client of one that has scraped a server under load."""
    folder = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
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


def test_the_server_is_scraped_without_an_error(prometheus):
    def is_up():
        [target] = prometheus.get("/targets").json()["data"]["activeTargets"]
        return (target["health"], target["lastError"]) == ("up", "")

    assert asked_again(is_up)


@pytest.mark.parametrize("query", of_dashboard(), ids=lambda query: query.where)
def test_a_panel_has_data(query, prometheus):
    assert asked_again(lambda: asked(prometheus, filled_in(query.text)))


@pytest.mark.parametrize("query", of_alerts(), ids=lambda query: query.where)
def test_an_alert_can_be_evaluated(query, prometheus):
    asked(prometheus, query.text)


def test_the_rules_are_healthy(prometheus):
    groups = prometheus.get("/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(of_alerts())
    assert {rule["health"] for rule in rules} == {"ok"}
