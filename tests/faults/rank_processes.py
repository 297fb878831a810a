"""Runs of the command line as real processes, one per rank, as torchrun starts them.

They are forked from a server that has imported everything, so that starting one takes
milliseconds instead of the seconds that torch and PyG need: tests can afford to kill them.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rank_pool import FORKS


@dataclass(frozen=True)
class Ended:
    """How a run's processes ended.

    Attributes:
        statuses: exit status by rank; the negative number of the signal that killed it.
        logs: what each rank wrote to its standard output and error.
        seconds: from the start to the end of the last one.
    """

    statuses: list[int]
    logs: list[str]
    seconds: float

    def __str__(self) -> str:
        texts = [
            f"--- rank {rank}: status {status}\n{log}"
            for rank, (status, log) in enumerate(zip(self.statuses, self.logs, strict=True))
        ]
        return "\n".join(texts)


def run_ranks(
    arguments: Sequence[str],
    world_size: int,
    folder: Path,
    timeout_s: float = 120.0,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Runs `python -m raygnn.train ARGUMENTS` on every rank, and waits for all of them.

    Args:
        folder: of logs, and of `pids`, which names the processes for one that kills them all.
        environment: variables of every rank, beside those of torchrun.
    Raises:
        TimeoutError: some rank hangs; with the logs of all. No process is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pids").unlink(missing_ok=True)
    began = time.monotonic()
    port = str(_free_port())
    processes = []
    for rank in range(world_size):
        variables = {
            **(environment or {}),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        log = folder / f"rank-{rank}.log"
        arguments_of_run = (list(arguments), variables, log, timeout_s)
        processes.append(FORKS.Process(target=_run, args=arguments_of_run))
    for process in processes:
        process.start()
    partial = folder / "pids.part"
    partial.write_text("\n".join(str(process.pid) for process in processes))
    partial.rename(folder / "pids")
    for process in processes:
        process.join(max(0.0, began + timeout_s - time.monotonic()))
    hanging = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    logs = [(folder / f"rank-{rank}.log").read_text() for rank in range(world_size)]
    ended = Ended([p.exitcode for p in processes], logs, time.monotonic() - began)
    if hanging:
        raise TimeoutError(f"ranks {hanging} hang after {timeout_s} s\n{ended}")
    return ended


def _run(arguments: list[str], variables: dict[str, str], log_path: Path, timeout_s: float) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    # As a shell starts it: what pytest or the server made of these is of no use here.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ |= variables
    # Of a rank that hangs, the log says where.
    faulthandler.dump_traceback_later(timeout_s - 5.0)
    from raygnn.train import main

    sys.exit(main(arguments))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
