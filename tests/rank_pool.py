"""Plain processes as ranks: started once a session, given a fresh gloo group for each call."""

from __future__ import annotations

import itertools
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any


class RankPool:
    """Runs functions of importable test modules on 1 to `size` ranks, and gives their results.

    Starting a process that imports torch and PyG takes seconds: the pool pays for it once.
    """

    def __init__(self, size: int = 3) -> None:
        spawn = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        self._folder, self._numbers = tempfile.TemporaryDirectory(), itertools.count()
        for rank in range(size):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs, rank), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
        """Calls `function(*args)` on every rank and returns the results by rank.

        Raises:
            RuntimeError: with the traceback of the first rank that raised.
        """
        # A rank opens the file once more as it leaves the group, after its answer.
        store = os.path.join(self._folder.name, str(next(self._numbers)))
        for pipe in self._pipes[:world_size]:
            pipe.send((function, world_size, store, args))
        answers = [pipe.recv() for pipe in self._pipes[:world_size]]
        for rank, (failure, _) in enumerate(answers):
            if failure is not None:
                raise RuntimeError(f"rank {rank}:\n{failure}")
        return [result for _, result in answers]

    def close(self) -> None:
        """Ends the processes; they hold nothing, and leaving politely takes them seconds."""
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(pipe: Connection, rank: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while (message := pipe.recv()) is not None:
        function, world_size, path, args = message
        try:
            store = dist.FileStore(path, world_size)
            dist.init_process_group(
                "gloo",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=60),
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
