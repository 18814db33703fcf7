"""The files for KServe: the server that they describe, called as KServe and its clients call it."""

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from progress_lines import first_line

np = pytest.importorskip("numpy")
triton = pytest.importorskip("tritonclient.http")

pytestmark = pytest.mark.real_time

FOLDER = Path(__file__).parents[2] / "examples" / "inside"
RUNTIME, SERVICE = yaml.safe_load_all((FOLDER / "kserve.yaml").read_text(encoding="utf-8"))
[CONTAINER] = RUNTIME["spec"]["containers"]
MODEL = SERVICE["spec"]["predictor"]["model"]
NAME = SERVICE["metadata"]["name"]
PROBES = [CONTAINER[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")]
HANG_S = 15


@pytest.fixture(scope="module")
def served(tmp_path_factory, free_tcp_port_factory):
    """The port and the process of a container of the service, as KServe starts it."""
    models = tmp_path_factory.mktemp("models")
    np.save(models / "weights.npy", np.array([1.0, 10.0, 100.0], np.float32))
    port = free_tcp_port_factory()
    # KServe fills the placeholders in, and mounts the model.
    env = {one["name"]: one["value"].replace("{{.Name}}", NAME) for one in CONTAINER["env"]}
    env["MODEL_DIR"] = env["MODEL_DIR"].replace("/mnt/models", str(models))
    args = [one.replace("8080", str(port)) for one in CONTAINER["args"]]
    command = [sys.executable, "-m", "shoal", "serve", *args]
    process = subprocess.Popen(
        command, cwd=FOLDER, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True
    )
    try:
        assert first_line(process.stderr).startswith("Shoal serving kserve_app:app on ")
        yield port, process
    finally:
        process.kill()
        process.communicate()


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=HANG_S) as answer:
        return answer.status, answer.read().decode()


def test_the_runtime_takes_the_model_of_the_service():
    formats = {(one["name"], one["version"]) for one in RUNTIME["spec"]["supportedModelFormats"]}
    assert tuple(MODEL["modelFormat"].values()) in formats
    assert MODEL["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]
    ports = {one["containerPort"] for one in CONTAINER["ports"]}
    assert ports == {probe["port"] for probe in PROBES} == {8080}
    assert "--port=8080" in CONTAINER["args"]
    # KServe fills all placeholders of a container in, but no others.
    placeholders = re.findall("{{.*?}}", str(CONTAINER))
    assert placeholders == ["{{.Name}}"]


def test_a_client_finds_the_service_by_its_name_and_shares_batches(served):
    port, _ = served
    assert [get(port, probe["path"])[0] for probe in PROBES] == [200, 200]

    def call(number):
        client = triton.InferenceServerClient(f"127.0.0.1:{port}", connection_timeout=HANG_S)
        rows = np.array([[number, 1, 2], [number, 0, 0]], np.float32)
        features = triton.InferInput("features", rows.shape, "FP32")
        features.set_data_from_numpy(rows)
        try:
            assert client.is_model_ready(NAME)
            return client.infer(NAME, [features]).as_numpy("output").tolist()
        finally:
            client.close()

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        found = list(threads.map(call, range(64)))
    assert found == [[number + 210.0, float(number)] for number in range(64)]
    metrics = get(port, "/-/metrics")[1]
    batches = re.findall(rf'^shoal_batches_total{{.*="{NAME}".*}} (\S+)$', metrics, re.MULTILINE)
    assert 0 < sum(map(float, batches)) <= 64  # of 128 rows


def test_the_server_ends_within_the_time_that_kubernetes_waits(served):
    _, process = served
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=HANG_S) == 0
