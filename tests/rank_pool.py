"""Plain processes as ranks: started once a session, given a fresh gloo group for each call."""

from __future__ import annotations

import faulthandler
import itertools
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

#: Forks processes from a server that has imported torch, PyG and raygnn, which takes seconds.
FORKS: Any = get_context("forkserver")
FORKS.set_forkserver_preload(["tests.preload"])


class RankPool:
    """Runs functions of importable test modules on 1 to `size` ranks and returns their results."""

    def __init__(self, size: int = 3) -> None:
        self._folder, self._numbers = tempfile.TemporaryDirectory(), itertools.count()
        self._ranks = [_Rank(rank) for rank in range(size)]

    def run(self, function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
        """Calls `function(*args)` on every rank and returns the results by rank.

        Raises:
            RuntimeError: with the traceback of the first rank that raised, or the exit code of one
                that died, whose place a new process takes.
        """
        # A rank opens the file once more as it leaves the group, after its answer.
        store = os.path.join(self._folder.name, str(next(self._numbers)))
        ranks = self._ranks[:world_size]
        FORKS.reducer.ForkingPickler.dumps((function, args))  # raises before a rank waits for it
        for rank in ranks:
            rank.wait_until_ready()
        for rank in ranks:
            rank.ask((function, world_size, store, args))
        answers = [rank.answer() for rank in ranks]
        for rank, (failure, _) in enumerate(answers):
            if failure is not None:
                raise RuntimeError(f"rank {rank}:\n{failure}")
        return [result for _, result in answers]

    def close(self) -> None:
        """Ends the processes; they hold nothing, and leaving politely takes them seconds."""
        for rank in self._ranks:
            rank.kill()
        self._folder.cleanup()


class _Rank:
    """A process that serves one rank, and a new one after it died."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=_serve, args=(theirs, self._rank), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        """Waits for the end of the last call, which has given its result before it left its group.

        What kills a process there is no failure of the test that asks next.
        """
        try:
            self._pipe.recv()
        except (EOFError, ConnectionResetError):
            print(f"replaced: {self._replaced('as it left its group')}", file=sys.stderr)
            self._pipe.recv()

    def ask(self, message: tuple[Any, ...]) -> None:
        self._pipe.send(message)

    def answer(self) -> tuple[str | None, Any]:
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._replaced("in this call"), None

    def _replaced(self, when: str) -> str:
        """What became of the process; the next call finds a new one."""
        self._process.join()
        code = self._process.exitcode
        self._start()
        return f"the process of rank {self._rank} died {when}, exit code {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, rank: int) -> None:
    import torch
    import torch.distributed as dist

    faulthandler.enable()
    torch.set_num_threads(1)
    while True:
        pipe.send("ready")
        function, world_size, path, args = pipe.recv()
        try:
            store = dist.FileStore(path, world_size)
            dist.init_process_group(
                "gloo",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=240),
            )
            # A function that fails at once must not leave the group while another rank connects:
            # after a failed start, torch names that rank's next groups unlike the others'.
            store.set(f"connected/{rank}", "")
            store.wait([f"connected/{other}" for other in range(world_size)])
            pipe.send((None, function(*args)))
        except BaseException:  # noqa: BLE001 - sent to the parent, which raises
            pipe.send((traceback.format_exc(), None))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
