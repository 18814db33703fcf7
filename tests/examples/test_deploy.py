"""The files of `examples/deploy`: each against its tool, and one against the other.

`make image-check` builds the image, and runs it.
"""

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from examples_checks import check_schema, option, read_unit, run, tool, verify_units
from progress_lines import first_line
from time_limits import HANG_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
SYSTEMD = DEPLOY / "systemd"

MANIFESTS = sorted(
    path
    for path in KUBERNETES.glob("*.yaml")
    if path.stem not in ("kustomization", "prometheus-adapter")
)


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def dockerfile():
    structure = DockerfileParser(str(DEPLOY / "Dockerfile")).structure
    return [(one["instruction"], one["value"]) for one in structure]


def of(instruction):
    return [value for name, value in dockerfile() if name == instruction]


TEMPLATE = read(KUBERNETES / "deployment.yaml")["spec"]["template"]
POD = TEMPLATE["spec"]
CONTAINER = POD["containers"][0]
SERVICES = read(DEPLOY / "compose.yaml")["services"]
METRICS_PATH = TEMPLATE["metadata"]["annotations"]["prometheus.io/path"]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_fits_its_schema(path, version):
    import kubernetes_validate

    kubernetes_validate.validate(read(path), version, strict=True)


def test_all_manifests_are_applied():
    kustomization = read(KUBERNETES / "kustomization.yaml")
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]
    assert [one["name"] for one in kustomization["images"]] == [CONTAINER["image"]]


def test_the_names_in_the_manifests_are_those_of_one_another():
    deployment = read(KUBERNETES / "deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    target = read(KUBERNETES / "autoscaler.yaml")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert read(KUBERNETES / "service.yaml")["spec"]["selector"] == labels
    assert read(KUBERNETES / "disruption.yaml")["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert read(KUBERNETES / "service.yaml")["spec"]["ports"][0]["targetPort"] in ports
    assert ports == {"http": int(of("EXPOSE")[0])}


def test_a_pod_may_change_nothing():
    assert POD["securityContext"]["runAsNonRoot"]
    user = f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
    assert [user] == of("USER")
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [mount["mountPath"] for mount in CONTAINER["volumeMounts"]] == ["/tmp"]


def test_each_has_time_to_drain():
    pod_s = int(option(CONTAINER["args"], "--graceful-timeout"))
    before_s = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["terminationGracePeriodSeconds"] == before_s + pod_s + 5
    image_s = int(option(json.loads(of("CMD")[0]), "--graceful-timeout")) + 5
    assert SERVICES["shoal"]["stop_grace_period"] == f"{image_s}s"
    assert f"--timeout {image_s}" in (DEPLOY / "Dockerfile").read_text()
    service = unit("shoal.service")["Service"]
    service_s = int(option(service["ExecStart"].split(), "--graceful-timeout"))
    assert int(service["TimeoutStopSec"]) == service_s + 5


def test_idle_connections_are_kept_longer_than_load_balancers_keep_them():
    for given in (
        CONTAINER["args"],
        json.loads(of("CMD")[0]),
        unit("shoal.service")["Service"]["ExecStart"].split(),
    ):
        assert int(option(given, "--keep-alive-timeout")) > 60


@pytest.fixture(scope="module")
def served(free_tcp_port_factory):
    """The port of the application, served as the image serves it."""
    port = free_tcp_port_factory()
    process = start("app:app", "--host", "0.0.0.0", "--port", str(port), directory=DEPLOY)
    try:
        assert first_line(process.stderr).startswith("Shoal serving app:app on ")
        yield port
    finally:
        process.kill()
        process.communicate()


def start(*arguments, directory, before=(), **more):
    command = [*before, sys.executable, "-m", "shoal", "serve", *arguments]
    return subprocess.Popen(command, cwd=directory, stderr=subprocess.PIPE, text=True, **more)


def ask(port, path, item=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    headers = {} if item is None else {"content-type": "application/json"}
    body = None if item is None else json.dumps(item)
    try:
        connection.request("GET" if item is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.real_time
def test_what_the_probes_ask_for_is_answered(served):
    probes = [CONTAINER[f"{name}Probe"] for name in ("startup", "liveness", "readiness")]
    paths = {probe["httpGet"]["path"] for probe in probes}
    paths.add(METRICS_PATH)
    assert {path: ask(served, path)[0] for path in paths} == dict.fromkeys(paths, 200)


@pytest.mark.real_time
def test_the_health_check_of_the_image_passes_if_the_server_is_ready(served):
    words = json.loads(of("HEALTHCHECK")[0].partition(" CMD ")[2])
    words[0] = sys.executable
    words[-1] = words[-1].replace(f":{of('EXPOSE')[0]}/", f":{served}/")
    assert subprocess.run(words, timeout=HANG_S, check=False).returncode == 0
    words[-1] = words[-1].replace("readyz", "nothing")
    failed = subprocess.run(words, timeout=HANG_S, check=False, capture_output=True)
    assert failed.returncode == 1


@pytest.mark.real_time
def test_the_autoscaler_goes_by_a_metric_of_the_server(served):
    [metric] = read(KUBERNETES / "autoscaler.yaml")["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    [rule] = read(KUBERNETES / "prometheus-adapter.yaml")["rules"]["custom"]
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert ask(served, "/embed", "herring") == (200, "7")
    assert re.search(rf"^{name}\{{[^}}]*\}} 0(\.0)?$", ask(served, "/-/metrics")[1], re.MULTILINE)


@pytest.mark.real_time
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")
def test_the_query_of_the_adapter_is_a_query(tmp_path):
    [rule] = read(KUBERNETES / "prometheus-adapter.yaml")["rules"]["custom"]
    query = rule["metricsQuery"]
    for name, value in [("Series", "x"), ("LabelMatchers", 'pod="p"'), ("GroupBy", "pod")]:
        query = query.replace(f"<<.{name}>>", value)
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        yaml.dump({"groups": [{"name": "a", "rules": [{"record": "x", "expr": query}]}]})
    )
    run("promtool", "check", "rules", str(rules))


@pytest.mark.real_time
def test_the_image_follows_the_rules_of_dockerfiles():
    run(tool("hadolint"), str(DEPLOY / "Dockerfile"))


def test_what_the_image_copies_is_in_its_context():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    taken = [name for value in of("COPY") if "--from" not in value for name in value.split()[:-1]]
    assert sorted(taken) == sorted(line[1:] for line in ignored if line.startswith("!"))
    assert [name for name in taken if not (ROOT / name).exists()] == []


@pytest.mark.slow
def test_the_composition_fits_its_schema():
    check_schema("vendor.compose-spec", DEPLOY / "compose.yaml")


def test_what_the_composition_mounts_is_there():
    mounted = [
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]
    assert [name for name in mounted if not (DEPLOY / name).exists()] == []
    assert (DEPLOY / SERVICES["shoal"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / SERVICES["shoal"]["build"]["dockerfile"]).exists()


def test_the_dashboard_is_found_and_finds_prometheus():
    [source] = read(DEPLOY / "grafana" / "datasource.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = read(DEPLOY / "grafana" / "dashboards.yaml")["providers"]
    directory = provider["options"]["path"]
    mounts = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert any(mount.startswith(f"{directory}/") for mount in mounts)


def test_prometheus_scrapes_the_server_of_the_composition():
    prometheus = read(DEPLOY / "prometheus.yaml")
    [job] = prometheus["scrape_configs"]
    assert job["metrics_path"] == METRICS_PATH
    [name] = [name for name, service in SERVICES.items() if "build" in service]
    assert job["static_configs"][0]["targets"] == [f"{name}:{of('EXPOSE')[0]}"]
    mounts = [volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]]
    [rules] = prometheus["rule_files"]
    assert str(Path("/etc/prometheus", rules)) in mounts


@pytest.mark.real_time
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")
def test_prometheus_takes_its_configuration():
    path = str(DEPLOY / "prometheus.yaml")
    run("promtool", "check", "config", "--syntax-only", path)


def unit(name):
    return read_unit(SYSTEMD / name)


@pytest.mark.real_time
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
@pytest.mark.parametrize("folder", [SYSTEMD, DEPLOY / "machines" / "systemd"])
def test_systemd_takes_the_units(folder, tmp_path):
    verify_units(folder, tmp_path)


@pytest.mark.real_time
@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="systemd-socket-activate is missing"
)
def test_the_units_serve_at_their_sockets(tmp_path, free_tcp_port):
    sockets = [unit(name)["Socket"] for name in ("shoal.socket", "shoal-admin.socket")]
    admin = tmp_path / Path(sockets[1]["ListenStream"]).name
    words = unit("shoal.service")["Service"]["ExecStart"].split()
    assert words[1] == "serve"
    names = ":".join(one["FileDescriptorName"] for one in sockets)
    listen = [f"--listen=127.0.0.1:{free_tcp_port}", f"--listen={admin}", f"--fdname={names}"]
    kept = [f"--setenv={name}={value}" for name, value in os.environ.items() if value]
    before = ["systemd-socket-activate", *listen, *kept]
    process = start(*words[2:], directory=DEPLOY, before=before)
    hang = threading.Timer(HANG_S, process.kill)
    hang.start()
    try:
        for _ in sockets:
            assert process.stderr.readline().startswith("Listening on ")
        admin.chmod(int(sockets[1]["SocketMode"], 8))
        assert ask(free_tcp_port, "/embed", "herring") == (200, "7")
        command = [sys.executable, "-m", "shoal", "status", "--json", "--url", f"unix:{admin}"]
        assert "embed" in json.loads(run(*command))["endpoints"]
        process.terminate()
        _, said = process.communicate(timeout=HANG_S)
        assert (process.returncode, "drained in" in said) == (0, True)
    finally:
        hang.cancel()
        process.kill()
        process.communicate()
