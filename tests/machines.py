"""Machines of a network, as network namespaces of Linux: for tests, by root.

Each machine is a namespace with one interface at a common switch. A process holds each namespace,
so nothing is left of them when the test ends, however it ends.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import Any

NETWORK = "10.77.0"


@functools.cache
def why_not() -> str | None:
    """Why there can be no machines here; None if there can."""
    for command in ("unshare", "nsenter", "ip"):
        if shutil.which(command) is None:
            return f"{command} is missing"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "one", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr.strip() or None if tried.returncode else None


class Namespace:
    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec cat"],
            stdin=subprocess.PIPE,  # with its end, the holder ends, even if the test is killed
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        self.pid = self._holder.pid

    def command(self, *words: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *words]

    def run(self, *words: str) -> str:
        ran = subprocess.run(self.command(*words), capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*words), text=True, **options)

    def close(self) -> None:
        self._holder.communicate()


class Machine(Namespace):
    def __init__(self, network: Network, number: int) -> None:
        super().__init__()
        self.address = f"{NETWORK}.{number}"
        self._switch = network.switch
        self._port = f"port{number}"
        ends = ("type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        self._switch.run("ip", "link", "add", self._port, *ends)
        self._switch.run("ip", "link", "set", self._port, "master", "switch", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def unplug(self) -> None:
        """Cuts the machine off: nothing arrives, and nobody is notified."""
        self._switch.run("ip", "link", "set", self._port, "down")

    def plug_in(self) -> None:
        self._switch.run("ip", "link", "set", self._port, "up")

    def lose(self, other: Machine) -> None:
        """Loses all that this machine sends to another one, and nothing in the other direction."""
        nowhere = ("lladdr", "02:00:00:00:00:01", "nud", "permanent")
        self.run("ip", "neighbour", "replace", other.address, *nowhere, "dev", "eth0")

    def find(self, other: Machine) -> None:
        self.run("ip", "neighbour", "del", other.address, "dev", "eth0")


class Network:
    """A switch and its machines, with the addresses 10.77.0.1, 10.77.0.2 ..."""

    def __init__(self, machines: int) -> None:
        self.switch = Namespace()
        self.machines: list[Machine] = []
        try:
            self.switch.run("ip", "link", "add", "switch", "type", "bridge")
            self.switch.run("ip", "link", "set", "switch", "up")
            self.machines += [Machine(self, number + 1) for number in range(machines)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for one in (*self.machines, self.switch):
            one.close()
