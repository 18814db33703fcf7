"""Build an image's steps in a clean root, and run the image, on a machine without Docker.

What stands in for the base image is a minimal Debian with its own CPython, which debootstrap makes.
Each step then runs as the Dockerfile has it, in namespaces of its own. The image is run as Docker
would: read-only, as its user, with a network of its own, as process 1. Needs Linux, root,
debootstrap and unshare.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from dockerfile_parse import DockerfileParser  # pyright: ignore[reportMissingTypeStubs]

ROOT: Final = Path(__file__).parents[1]
DOCKERFILE: Final = "examples/deploy/Dockerfile"
CACHE: Final = ROOT / ".image"
RELEASE: Final = "trixie"
PACKAGES: Final = "python3,python3-venv,ca-certificates"
TAKEN_FROM_HERE: Final = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
PASSED_ON: Final = ("PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "http_proxy", "https_proxy")
HANG_S: Final = 60.0

# Runs a program in a root: $1 is the root, $2 the directory, $3 the user, $4 "ro" for a root that
# can't be written to.
ENTER: Final = """\
set -eu
root=$1 directory=$2 user=$3 mode=$4
shift 4
mount --bind "$root" "$root"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
if [ "$mode" = ro ]; then
  ip link set lo up
  mount -o remount,bind,ro "$root"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
fi
exec chroot --userspec="$user" "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$directory" "$@"
"""


@dataclass
class Stage:
    """What the steps of a stage have made so far."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    directory: str = "/"
    user: str = "0:0"
    commands: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def program(self, words: list[str], *, runs: bool = False) -> list[str]:
        """Return what runs a program in the root: while the image is built, or when it is run."""
        given = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        if not runs:
            given |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
            given["DEBIAN_FRONTEND"] = "noninteractive"
        given |= self.environment
        apart = ["--mount", "--pid", "--fork", "--kill-child", *(["--net"] if runs else [])]
        entered = [str(self.root), self.directory, self.user, "ro" if runs else "rw"]
        variables = [f"{name}={value}" for name, value in given.items()]
        return [
            *("unshare", *apart, "/bin/sh", "-c", ENTER, "enter", *entered),
            *("/usr/bin/env", "-i", *variables, *words),
        ]


def base() -> Path:
    """Return a root to copy, which is made once."""
    made = CACHE / f"{RELEASE}-{PACKAGES}"
    if not made.exists():
        print(f"== debootstrap {RELEASE}", flush=True)
        unfinished = made.with_name("unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        CACHE.mkdir(exist_ok=True)
        # In a namespace of its own, so that what it mounts goes with it.
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE]
        subprocess.run(
            ["unshare", "--mount", *command, str(unfinished)], check=True, stdout=subprocess.DEVNULL
        )
        for name in TAKEN_FROM_HERE:
            if Path(name).exists():
                shutil.copy(name, unfinished / name[1:])
        (unfinished / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        unfinished.rename(made)
    return made


def steps(dockerfile: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, each with what follows its name."""
    parser = DockerfileParser(str(dockerfile))
    found = cast("list[dict[str, str]]", parser.structure)  # pyright: ignore[reportUnknownMemberType]
    return [(one["instruction"].upper(), one["value"]) for one in found]


def build(dockerfile: Path, context: Path, inside: Path) -> Stage:
    """Run the steps of a Dockerfile, and return its last stage.

    Raises:
        CalledProcessError: A step failed.
        ValueError: It has an instruction that this does not know.
    """
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    stage = Stage(inside)
    for instruction, value in steps(dockerfile):
        if instruction == "COMMENT":
            continue
        print(f"-- {instruction} {value}", flush=True)
        words = shlex.split(value)
        match instruction:
            case "FROM":
                name = words[2] if len(words) == 3 else f"stage {len(stages)}"
                stage = stages[name] = Stage(inside / name)
                subprocess.run(["cp", "-a", str(base()), str(stage.root)], check=True)
            case "ARG":
                name, _, default = value.partition("=")
                arguments[name] = default
            case "ENV":
                for word in words:
                    name, _, content = word.partition("=")
                    stage.environment[name] = expanded(content, stage.environment | arguments)
            case "RUN":
                subprocess.run(stage.program(["/bin/sh", "-c", value]), check=True)
            case "COPY":
                copy(words, stages, stage, context)
            case "WORKDIR":
                stage.directory = value
                (stage.root / value[1:]).mkdir(parents=True, exist_ok=True)
            case "USER":
                stage.user = value
            case "ENTRYPOINT" | "CMD":
                stage.commands[instruction] = json.loads(value)
            case "HEALTHCHECK":
                stage.commands[instruction] = json.loads(value.partition(" CMD ")[2])
            case "EXPOSE" | "STOPSIGNAL":
                pass
            case _:
                raise ValueError(f"{dockerfile}: no step for {instruction} {value}")
    return stage


def expanded(text: str, variables: dict[str, str]) -> str:
    """Return a value with the variables in it; $PATH is that of the base."""
    known = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **variables}
    for name in sorted(known, key=len, reverse=True):
        text = text.replace(f"${name}", known[name])
    return text


def copy(words: list[str], stages: dict[str, Stage], stage: Stage, context: Path) -> None:
    """Copy from the context or another stage, what git ignores left out of the context."""
    source = context
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root
    *names, goal = words
    target = stage.root / (goal if goal.startswith("/") else f"{stage.directory}/{goal}").lstrip(
        "/"
    )
    for name in names:
        one = source / name.lstrip("/")
        if one.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(one, target, dirs_exist_ok=True, symlinks=True, ignore=ignored)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(one, target)


class Running:
    """The image, as Docker would run it.

    Attributes:
        process: The process that waits for the namespaces' end.
        pid: The number, outside, of the image's process 1.
    """

    def __init__(self, stage: Stage, command: list[str] | None = None) -> None:
        self._stage = stage
        words = [*stage.commands["ENTRYPOINT"], *(command or stage.commands["CMD"])]
        self.process = subprocess.Popen(
            stage.program(words, runs=True), stderr=subprocess.PIPE, text=True
        )
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.pid = int(until(lambda: children.read_text().strip()))
        until(lambda: Path(f"/proc/{self.pid}/comm").read_text().strip() == words[0])

    def inside(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a program in the image's namespaces, as its user, as `docker exec` does."""
        entered = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid"]
        variables = [f"{name}={value}" for name, value in self._stage.environment.items()]
        rooted = ["chroot", f"--userspec={self._stage.user}", str(self._stage.root)]
        return subprocess.run(
            [*entered, *rooted, "/usr/bin/env", "-i", *variables, *words],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    def stop(self) -> tuple[int, str]:
        """Stop it as `docker stop` does; return its exit code and what it has said."""
        os.kill(self.pid, signal.SIGTERM)
        try:
            _, said = self.process.communicate(timeout=HANG_S)
        finally:
            self.process.kill()
        return self.process.returncode, said


def until(true: object) -> str:
    """Wait until a function returns something true, and return that."""
    assert callable(true)
    ends = time.monotonic() + HANG_S
    while time.monotonic() < ends:
        if found := true():
            return str(found)
        time.sleep(0.02)
    raise TimeoutError(f"nothing true in {HANG_S:g} s")


CALL: Final = """\
import urllib.request
request = urllib.request.Request(
    "http://127.0.0.1:8000/embed", b'"herring"', {"content-type": "application/json"}
)
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""

# Whatever its user could change would show here.
CHANGE: Final = """\
import os
for directory in ("/srv", "/opt/shoal", "/etc", "/"):
    assert not os.access(directory, os.W_OK), directory
assert os.getuid() == os.getgid() == 10001
open("/tmp/written", "w").close()
"""

SLOW: Final = """\
import time
open("/tmp/importing", "w").close()
time.sleep(600)
"""


def check(stage: Stage) -> None:
    """Run the image, and check what its Dockerfile promises.

    Raises:
        AssertionError: A promise does not hold.
    """
    running = Running(stage)
    until(lambda: running.inside(stage.commands["HEALTHCHECK"]).returncode == 0)
    print("== it is healthy")
    called = running.inside(["python", "-c", CALL])
    assert called.stdout == "7\n", called
    changed = running.inside(["python", "-c", CHANGE])
    assert changed.returncode == 0, changed
    told = running.inside(["shoal", "status", "--url", "unix:/tmp/shoal-admin.sock"])
    assert "embed" in told.stdout, told
    code, said = running.stop()
    assert (code, "drained in" in said) == (0, True), (code, said)
    print("== it answers, can't change its files, and drains at SIGTERM")

    importing = Running(stage, ["time:sleep", "--host", "0.0.0.0"])
    importing.process.communicate(timeout=HANG_S)
    assert importing.process.returncode == 2, "a mistake in the command has its own exit code"
    slow = Running(stage, ["slow:app"])
    until(lambda: slow.inside(["test", "-e", "/tmp/importing"]).returncode == 0)
    before = time.monotonic()
    os.kill(slow.pid, signal.SIGTERM)
    slow.process.communicate(timeout=HANG_S)
    assert time.monotonic() - before < 10, "a signal while it imports its application must end it"
    print("== it ends at SIGTERM while it imports its application")


def main() -> int:
    """Build and check the image; return the exit code."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None or shutil.which("unshare") is None:
        print("left out: it needs root, debootstrap and unshare, or Docker", file=sys.stderr)
        return 0
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as inside:
        stage = build(ROOT / DOCKERFILE, ROOT, Path(inside))
        (stage.root / "srv/slow.py").write_text(SLOW)
        check(stage)
    return 0


if __name__ == "__main__":
    sys.exit(main())
