"""The files of `examples/deploy/machines`: each against its tool, and one against the other.

`test_machines.py` runs them.
"""

import http.client
import json
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from certificates import new_certificate
from examples_checks import option, read_unit, run, tool
from progress_lines import first_line
from shoal.cli import _parser
from shoal.serving.app_file.file import read_app_file
from time_limits import HANG_S

FILES = Path(__file__).parents[2] / "examples" / "deploy" / "machines"
KUBERNETES, KUBERAY, SYSTEMD = (FILES / name for name in ("kubernetes", "kuberay", "systemd"))
APP_FILES = [FILES / "ingress.toml", KUBERNETES / "ingress.toml", KUBERAY / "models.toml"]

DOCUMENTS = [
    document
    for path in sorted(KUBERNETES.glob("*.yaml"))
    if path.stem != "kustomization"
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
RAY = yaml.safe_load((KUBERAY / "raycluster.yaml").read_text(encoding="utf-8"))
GROUPS = {group["groupName"]: group["template"] for group in RAY["spec"]["workerGroupSpecs"]}
RAY_PODS = {"head": RAY["spec"]["headGroupSpec"]["template"], **GROUPS}


def found(kind, name):
    [one] = [d for d in DOCUMENTS if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return one


def template(name):
    return found("Deployment", name)["spec"]["template"]


def container(of):
    [one] = of["spec"]["containers"]
    return one


def ports(of):
    return {port["name"]: port["containerPort"] for port in container(of)["ports"]}


ROLES = ["shoal-ingress", "shoal-models"]
SERVERS = GROUPS["servers"]
SERVED = [template(name) for name in ROLES] + [SERVERS]


def config_of(path):
    [(_, config)] = read_app_file(path).backends.values()
    return config.durable()


def words_of(of):
    one = container(of)
    if "command" not in one:
        return ["serve", *one["args"]]
    return one["args"][0].partition("exec shoal ")[2].split()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_manifests_fit_their_schemas(version):
    import kubernetes_validate

    for document in DOCUMENTS:
        if "monitoring" not in document["apiVersion"]:
            kubernetes_validate.validate(document, version, strict=True)
    for name, of in RAY_PODS.items():
        metadata = {"name": name, **of.get("metadata", {})}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": of["spec"]}
        kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.real_time
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is missing")
@pytest.mark.parametrize("folder", [KUBERNETES, KUBERAY], ids=lambda folder: folder.name)
def test_kubectl_builds_them(folder):
    built = list(yaml.safe_load_all(run("kubectl", "kustomize", str(folder))))
    assert "example.com" in str(built)
    kinds = [(one["kind"], one["metadata"]["name"]) for one in built]
    expected = [(one["kind"], one["metadata"]["name"]) for one in DOCUMENTS]
    if folder == KUBERAY:
        gone = [("Deployment", "shoal-models"), ("HorizontalPodAutoscaler", "shoal-models")]
        expected = [one for one in expected if one not in gone] + [("RayCluster", "shoal-models")]
        [budget] = [one for one in built if one["kind"] == "PodDisruptionBudget"][1:]
        assert budget["spec"].keys() == {"minAvailable", "selector"}
    [config] = [name for kind, name in kinds if kind == "ConfigMap"]
    assert sorted(kinds) == sorted([*expected, ("ConfigMap", config)])
    pods = next(one for one in built if one["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert config in [volume.get("configMap", {}).get("name") for volume in pods["volumes"]]


@pytest.mark.parametrize("name", ROLES)
def test_the_names_are_those_of_one_another(name):
    labels = {"app.kubernetes.io/name": name}
    assert found("Deployment", name)["spec"]["selector"]["matchLabels"] == labels
    assert template(name)["metadata"]["labels"] == labels
    service = found("Service", name)
    assert service["spec"]["selector"] == service["metadata"]["labels"] == labels
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports(template(name)).keys()
    assert found("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"] == labels
    target = found("HorizontalPodAutoscaler", name)["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", name)
    monitor = found("ServiceMonitor", name)["spec"]
    assert monitor["selector"]["matchLabels"] == labels
    [endpoint] = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    policy = found("NetworkPolicy", name)["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    let_in = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert let_in == ports(template(name)).keys()


def test_only_ingresses_reach_the_wire():
    rules = found("NetworkPolicy", "shoal-models")["spec"]["ingress"]
    [wire] = [rule for rule in rules if {"port": "wire"} in rule["ports"]]
    assert wire["from"] == [
        {"podSelector": {"matchLabels": template(ROLES[0])["metadata"]["labels"]}}
    ]
    [volume] = [v for v in template(ROLES[0])["spec"]["volumes"] if "secret" in v]
    assert [one["key"] for one in volume["secret"]["items"]] == ["token"]


def test_ingresses_find_the_model_servers():
    service = found("Service", "shoal-models")
    assert service["spec"]["clusterIP"] == "None"
    [wire] = [port["port"] for port in service["spec"]["ports"] if port["name"] == "wire"]
    config = config_of(KUBERNETES / "ingress.toml")
    assert config["model_servers"] == [f"tls://shoal-models:{wire}"]
    assert SERVERS["metadata"]["labels"] == service["spec"]["selector"]
    for of in (template("shoal-models"), SERVERS):
        assert option(words_of(of), "--model-server") == f"tls://0.0.0.0:{ports(of)['wire']}"
        assert option(words_of(of), "--port") == str(ports(of)["metrics"])


@pytest.mark.parametrize("path", APP_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_files_of_applications_are_right(path):
    assert config_of(path)["retries"] == 1


def test_the_commands_are_understood():
    units = [read_unit(SYSTEMD / f"shoal-{name}.service") for name in ("models", "ingress")]
    commands = [unit["Service"]["ExecStart"].split()[1:] for unit in units]
    for words in [*commands, *map(words_of, SERVED)]:
        assert callable(_parser(words).parse_args(words).run)


def test_what_pods_read_is_mounted():
    for of in SERVED:
        mounts = [mount["mountPath"] for mount in container(of)["volumeMounts"]]
        read = re.findall(r"/etc/shoal/\w+", " ".join(words_of(of)))
        assert set(read) <= set(mounts)
    token = config_of(KUBERNETES / "ingress.toml")
    assert Path(token["model_server_token_file"]).parent.as_posix() == "/etc/shoal/wire"


def test_each_has_time_to_drain():
    for of in SERVED:
        before_s = container(of).get("lifecycle", {}).get("preStop", {}).get("sleep", {})
        drain_s = int(option(words_of(of), "--graceful-timeout")) + 5
        assert of["spec"]["terminationGracePeriodSeconds"] == before_s.get("seconds", 0) + drain_s
    for name in ("models", "ingress"):
        service = read_unit(SYSTEMD / f"shoal-{name}.service")["Service"]
        drain_s = int(option(service["ExecStart"].split(), "--graceful-timeout")) + 5
        assert int(service["TimeoutStopSec"]) == drain_s


def test_the_pods_may_change_nothing():
    for name in ROLES:
        of = template(name)
        assert of["spec"]["securityContext"]["runAsNonRoot"]
        assert container(of)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.real_time
def test_a_model_server_answers_its_probes_and_has_the_metric_of_its_autoscaler(tmp_path):
    new_certificate(tmp_path)
    (tmp_path / "token").write_text("a-token-of-at-least-thirty-two-characters")
    words = " ".join(words_of(template("shoal-models"))).replace("/etc/shoal/wire", str(tmp_path))
    words = words.replace("0.0.0.0", "127.0.0.1").replace(":9000", ":0").replace("=8001", "=0")
    words = words.replace("/tmp/shoal-admin.sock", str(tmp_path / "admin.sock"))
    command = [sys.executable, "-m", "shoal", *words.split()]
    with subprocess.Popen(command, cwd=FILES.parent, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = int(re.search(r"https://\S+:(\d+)", first_line(process.stderr))[1])
            probes = [
                container(template("shoal-models"))[f"{one}Probe"]["httpGet"]
                for one in ("startup", "liveness", "readiness")
            ]
            assert {probe["scheme"] for probe in probes} == {"HTTPS"}
            assert [ask(port, probe["path"])[0] for probe in probes] == [200] * 3
            [monitored] = found("ServiceMonitor", "shoal-models")["spec"]["endpoints"]
            [metric] = found("HorizontalPodAutoscaler", "shoal-models")["spec"]["metrics"]
            assert monitored["scheme"] == "https"
            status, page = ask(port, monitored["path"])
            assert status == 200
            assert re.search(rf"^{metric['pods']['metric']['name']}\{{", page, re.MULTILINE)
        finally:
            process.kill()


def ask(port, path):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)
    try:
        if path.endswith("metrics"):
            connection.request(
                "POST", "/embed", json.dumps("a text"), {"content-type": "application/json"}
            )
            connection.getresponse().read()
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.real_time
def test_the_image_of_ray_follows_the_rules_of_dockerfiles():
    run(tool("hadolint"), str(KUBERAY / "Dockerfile"))
    text = (KUBERAY / "Dockerfile").read_text()
    assert f"rayproject/ray:{RAY['spec']['rayVersion']}-" in text
    copied = re.search(r"^COPY (.*) /srv/shoal/$", text, re.MULTILINE)[1].split()
    assert [name for name in copied if not (FILES.parent / name).exists()] == []


def test_the_units_hold_what_their_programs_read():
    services = {
        name: read_unit(SYSTEMD / f"shoal-{name}.service")["Service"]
        for name in ("models", "ingress")
    }
    text = (SYSTEMD / "shoal-models.service").read_text()
    read = set(re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/(\S+)", text))
    assert read == set(re.findall(r"^LoadCredential=(\S+):", text, re.MULTILINE))
    config = config_of(FILES / "ingress.toml")
    token = "/run/credentials/shoal-ingress.service/token"
    assert config["model_server_token_file"] == token
    assert services["ingress"]["LoadCredential"] == "token:/etc/shoal/token"
