"""A Ray cluster of its own for tests that need one from outside: ports, token, temp folder.

Its nodes are raylets on this machine, each a `ray start --block` that is ended by its id.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import requests

from tests.wait_until import wait_until

RAY = str(Path(sys.executable).with_name("ray"))


def _free_ports(count: int) -> list[int]:
    """Free ports that nobody else takes before Ray does.

    They lie outside of 10002-19999, where Ray's workers of any cluster listen, and below those that
    Linux gives to outgoing connections.
    """
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(20_000, 32_768), 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"{len(ports)} ports are free, and {count} are needed")


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return []


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it has started."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    for member in psutil.wait_procs(family, timeout=10)[1]:
        member.kill()
    process.kill()
    process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and all that it has started at once, as a machine does that loses power."""
    for member in [*psutil.Process(process.pid).children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def num_sent(log: str) -> int:
    """To how many nodes the graph was sent, by a driver's log.

    Nodes that share a temp folder each show every line of all workers.
    """
    return len(set(re.findall(r"graph sent to node \S+ \((\w+)\)", log)))


#: Ports that two raylets of a machine must not share.
_NODE_PORTS = (
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
    "node-manager-port",
    "object-manager-port",
    "runtime-env-agent-port",
)
_HEAD_PORTS = ("port", "dashboard-port", "ray-client-server-port")


@dataclass
class RayHead:
    """A head, and the nodes that are added to it.

    Attributes:
        folder: holds logs, and Ray's temporary folder `ray`.
        takes_jobs: waits until jobs can be submitted, which takes longer.
    """

    num_cpus: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    takes_jobs: bool = True

    def __enter__(self) -> RayHead:
        self.folder = Path(tempfile.mkdtemp(prefix="raygnn-head-"))  # short: holds sockets
        self._processes: list[subprocess.Popen[bytes]] = []
        self._metrics_ports: dict[int, int] = {}  # by process id
        ports = dict(zip(_HEAD_PORTS, _free_ports(len(_HEAD_PORTS)), strict=True))
        self.address = f"127.0.0.1:{ports['port']}"
        self.dashboard = f"http://127.0.0.1:{ports['dashboard-port']}"
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        inherited = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "PYTHONPATH")}
        # Jobs say `python`, and mean that of the tests.
        inherited["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{inherited['PATH']}"
        self._node_environment = {**inherited, **token, **self.environment}
        #: Of whoever submits jobs.
        self.client_environment = {**inherited, **token, "RAY_API_SERVER_ADDRESS": self.dashboard}
        #: What a driver needs to join the cluster.
        self.driver_environment = {**token, "RAY_ADDRESS": self.address}
        options = ["--head", f"--temp-dir={self.folder / 'ray'}"]
        options += [f"--{name}={port}" for name, port in ports.items()]
        try:
            self._start(self.num_cpus, options, {}, ())
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the head."""
        return self._processes[0]

    def __exit__(self, *error: object) -> None:
        for process in reversed(self._processes):
            end(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def add_node(
        self,
        num_cpus: int,
        environment: Mapping[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
    ) -> subprocess.Popen[bytes]:
        """Starts one more node, and waits for it: two at a time take each other's sockets.

        Args:
            wrapper: a command that runs the rest of its arguments.
        """
        log = self.folder / f"log-{len(self._processes)}"
        options = [f"--address={self.address}"]
        process = self._start(num_cpus, options, environment or {}, wrapper)
        wait_until(lambda: "Ray runtime started" in log.read_text(), process, log.read_text)
        return process

    def _start(
        self,
        num_cpus: int,
        options: list[str],
        environment: Mapping[str, str],
        wrapper: tuple[str, ...],
    ) -> subprocess.Popen[bytes]:
        command = [*wrapper, RAY, "start", "--block", "--disable-usage-stats", *options]
        command += [f"--num-cpus={num_cpus}", "--node-ip-address=127.0.0.1"]
        command += ["--object-store-memory=200000000", "--min-worker-port=0", "--max-worker-port=0"]
        ports = dict(zip(_NODE_PORTS, _free_ports(len(_NODE_PORTS)), strict=True))
        command += [f"--{name}={port}" for name, port in ports.items()]
        with (self.folder / f"log-{len(self._processes)}").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**self._node_environment, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        self._metrics_ports[process.pid] = ports["metrics-export-port"]
        return process

    def submit(
        self, working_dir: Path, *command: str, options: tuple[str, ...] = (), timeout_s: int = 500
    ) -> subprocess.CompletedProcess[str]:
        """`ray job submit` from a shell in a folder; waits for the job, as it does."""
        return subprocess.run(
            [RAY, "job", "submit", "--working-dir", ".", *options, "--", *command],
            cwd=working_dir,
            env=self.client_environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def job(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`ray job ARGUMENTS`, such as status, logs or stop."""
        return subprocess.run(
            [RAY, "job", *arguments],
            env=self.client_environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def metrics(self) -> str:
        """What all nodes show to Prometheus."""
        ports = [self._metrics_ports[process.pid] for process in self._alive()]
        return "".join(
            requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text for port in ports
        )

    def has_process(self, name: str) -> bool:
        """Whether a process of some node has a name, such as that of an actor's class."""
        members = [
            member
            for process in self._alive()
            for member in psutil.Process(process.pid).children(recursive=True)
        ]
        return any(name in " ".join(_command_line(member)) for member in members)

    def _alive(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes if process.poll() is None]

    def _wait(self) -> None:
        # The dashboard answers before there is an agent that runs jobs.
        submit, look = ["job", "submit", "--", "true"], ["health-check", "--address", self.address]
        command = [RAY, *(submit if self.takes_jobs else look)]

        def answers() -> bool:
            done = subprocess.run(
                command, env=self.client_environment, capture_output=True, check=False
            )
            return done.returncode == 0

        wait_until(answers, self._processes[0], (self.folder / "log-0").read_text)
