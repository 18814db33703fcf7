"""`examples/deploy/machines` on machines: three model servers, two ingresses, nginx.

The machines are network namespaces. The commands are those of the units, and nginx has the
configuration of the example.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import machines
from certificates import new_certificate
from time_limits import HANG_S

FILES = Path(__file__).parents[2] / "examples" / "deploy" / "machines"
LOAD = Path(__file__).with_name("machine_load.py")

reason = machines.why_not() or (None if shutil.which("nginx") else "nginx is missing")
pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.skipif(reason is not None, reason=str(reason)),
]

APP = """
import time

import shoal

app = shoal.App()


@app.endpoint("/embed", max_batch_size=64)
def embed(texts: list[str]) -> list[int]:
    time.sleep(0.02)
    return [len(text) for text in texts]
"""


def command_of(unit, replaced):
    text = (FILES / "systemd" / unit).read_text().replace("\\\n", " ")
    words = re.search(r"^ExecStart=\S+/shoal (.*)$", text, re.MULTILINE)[1]
    for old, new in replaced.items():
        words = words.replace(old, new)
    return words.split()


class Server:
    """A `shoal serve` on a machine, in a directory of its own."""

    def __init__(self, machine, directory, words):
        self.machine = machine
        self._directory = directory
        self._words = words
        self._process = None

    @property
    def address(self):
        return self.machine.address

    def begin(self):
        self._process = self.machine.popen(
            *(sys.executable, "-m", "shoal", *self._words, "--log-level", "warning"),
            cwd=self._directory,
            stderr=subprocess.PIPE,
        )

    def wait_until_served(self):
        said = []
        for line in self._process.stderr:
            if line.startswith("Shoal serving"):
                return
            said.append(line)
        raise AssertionError("".join(said))

    def end(self):
        """Ends it as systemd does; returns what it said at the end."""
        self._process.send_signal(signal.SIGTERM)
        said = self._process.communicate(timeout=HANG_S)[1]
        assert self._process.returncode == 0, said
        return said

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


class World:
    def __init__(self, network, models, ingresses):
        self.network = network
        self.models = models
        self.ingresses = ingresses
        self.proxy, self.client = network.machines[-2:]

    @contextmanager
    def load(self, ingress=None):
        """Clients that call nginx, or an ingress; what they met is in the dictionary at the end."""
        met = {}
        url = self.proxy.address if ingress is None else f"{ingress.address}:8000"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        program = self.client.popen(sys.executable, str(LOAD), url, **pipes)
        try:
            assert program.stdout.readline() == "started\n"
            yield met
            said, _ = program.communicate(timeout=HANG_S)
            met.update(json.loads(said))
            print(met)
        finally:
            program.kill()
            program.communicate()

    def starts(self, model):
        url = f"https://{model.address}:8001/-/metrics"
        page = self.client.run("curl", "--insecure", "--silent", "--show-error", url)
        return int(re.search(r"^shoal_replica_starts_total\S* (\d+)", page, re.MULTILINE)[1])

    def ready(self, ingress):
        url = f"http://{ingress.address}:8000/-/metrics"
        page = self.client.run("curl", "--silent", "--show-error", url)
        [count] = re.findall(
            r'^shoal_replicas{backend="embed",state="ready"} (.*)$', page, re.MULTILINE
        )
        return int(float(count))

    def wait_ready(self, count, *ingresses):
        """Waits until each ingress has this many model servers."""
        until = time.monotonic() + HANG_S
        while (seen := [self.ready(one) for one in ingresses or self.ingresses]) != [
            count for _ in seen
        ]:
            assert time.monotonic() < until, seen
            time.sleep(0.1)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    certificate = new_certificate(folder)
    assert set(certificate.values()) == {str(folder / "cert.pem"), str(folder / "key.pem")}
    (folder / "token").write_text("a-token-of-at-least-thirty-two-characters")
    (folder / "app.py").write_text(APP)
    with ExitStack() as stack:
        network = machines.Network(7)
        stack.callback(network.close)
        here = {"${CREDENTIALS_DIRECTORY}": str(folder)}
        words = command_of("shoal-models.service", here)
        models = [Server(one, folder, words) for one in network.machines[:3]]
        addresses = "".join(f"tls://{one.address}:9000\n" for one in models)
        (folder / "model-servers").write_text(addresses)
        toml = (FILES / "ingress.toml").read_text()
        toml = toml.replace("/run/credentials/shoal-ingress.service/token", str(folder / "token"))
        toml = toml.replace("/etc/shoal/model-servers", str(folder / "model-servers"))
        (folder / "ingress.toml").write_text(toml)
        words = [*command_of("shoal-ingress.service", {}), "--host", "0.0.0.0"]
        ingresses = [Server(one, folder, words) for one in network.machines[3:5]]
        for one in (*models, *ingresses):
            stack.callback(one.kill)
            one.begin()
        for one in (*models, *ingresses):
            one.wait_until_served()
        made = World(network, models, ingresses)
        stack.enter_context(nginx(folder, made))
        made.wait_ready(3)
        yield made


@contextmanager
def nginx(folder, world):
    site = (FILES / "nginx.conf").read_text()
    for number, one in enumerate(world.ingresses, 1):
        site = site.replace(f"10.0.0.{number}:", f"{one.address}:")
    assert "10.0.0." not in site
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"user root; daemon off; worker_processes 1; pid {folder}/nginx.pid;\n"
        f"error_log stderr crit;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    words = ("nginx", "-e", "stderr", "-c", str(folder / "nginx.conf"))
    world.proxy.run(*words, "-t")
    process = world.proxy.popen(*words)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=HANG_S)


def test_a_rolling_update_of_the_model_servers_loses_nothing(world):
    with world.load() as met:
        for one in world.models:
            one.end()
            one.begin()
            one.wait_until_served()
            world.wait_ready(3)
    assert met["lost"] == []


def test_a_rolling_update_of_the_ingresses_loses_nothing(world):
    with world.load() as met:
        for one in world.ingresses:
            one.end()
            one.begin()
            one.wait_until_served()
    assert met["lost"] == []


def test_a_killed_ingress_loses_nothing_behind_nginx(world):
    with world.load() as met:
        restart_killed(world, world.ingresses[1])
    assert met["lost"] == []


# From here on, the clients call an ingress: nginx would hide what it loses.
def test_a_killed_model_server_loses_nothing(world):
    with world.load(world.ingresses[0]) as met:
        restart_killed(world, world.models[2])
    assert met["lost"] == []


def restart_killed(world, server):
    server.kill()
    server.begin()
    server.wait_until_served()
    world.wait_ready(3)


def test_a_machine_that_is_cut_off_under_load_loses_nothing(world):
    cut = world.models[0]
    began = world.starts(cut)
    with world.load(world.ingresses[0]) as met:
        cut.machine.unplug()
        world.wait_ready(2)
        cut.machine.plug_in()
        world.wait_ready(3)
    assert met["lost"] == []
    assert met["longest_s"] < 7.5
    assert world.starts(cut) == began == 1


def test_a_path_that_fails_in_one_direction_loses_nothing(world):
    model, ingress = world.models[1], world.ingresses[0]
    with world.load(ingress) as met:
        ingress.machine.lose(model.machine)
        world.wait_ready(2, ingress)
        ingress.machine.find(model.machine)
        world.wait_ready(3)
    assert met["lost"] == []
