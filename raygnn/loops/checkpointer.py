"""When a run saves, what its pointers name, and from where it goes on."""

from __future__ import annotations

import secrets

from raygnn.errors import CheckpointError
from raygnn.loops import collectives
from raygnn.loops.checkpoints import CheckpointStore, Retention
from raygnn.loops.context import WorkerContext
from raygnn.loops.engine import Engine
from raygnn.loops.progress import say
from raygnn.loops.randomness import random_state, restore_random_state
from raygnn.loops.run_folder import RunFolder


class Checkpointer:
    """Saves an engine into its run folder, and restores it from there."""

    def __init__(self, folder: RunFolder, context: WorkerContext, retention: Retention) -> None:
        self._store = CheckpointStore(folder.checkpoints_uri)
        self._context = context
        self._retention = retention
        self._attempt = folder.attempt
        # A restarted worker group must not write under a name that a dead one may have used.
        self._start = collectives.broadcast_object(secrets.token_hex(2))

    def __call__(self, engine: Engine, metrics: dict[str, float], improved: bool) -> None:
        """Writes a checkpoint and reports it. Collective: all ranks must call."""
        name = f"step-{engine.position.step:010d}-{self._attempt}-{self._start}"
        state = engine.state_dict()
        engine.callbacks.call("on_save_checkpoint", engine, state)
        self._store.save(name, state, random_state())
        if self._context.rank == 0:
            self._store.point("last", name)
            if improved:
                self._store.point("best", name)
            self._store.prune(self._retention)
        engine.callbacks.call("on_checkpoint_written", engine, name)
        self._context.report(metrics, self._store.path_of(name))

    def restore(self, engine: Engine, resume: str) -> bool:
        """Puts an engine where its run stood. Collective: all ranks must call.

        Args:
            resume: auto | must | last | best | never, or the URI of one checkpoint.
        Returns:
            Whether there was anything to restore.
        Raises:
            CheckpointError: what `resume` asks for is not there, or nothing readable is left.
        """
        choice, problem = None, None
        if self._context.rank == 0:
            try:
                choice = self._choose(resume)
            except CheckpointError as error:
                problem = str(error)
        choice, problem = collectives.broadcast_object((choice, problem))
        if problem is not None:
            raise CheckpointError(problem)
        if choice is None:
            return False
        root, name = choice
        state, rank_state = CheckpointStore(root).load(name, self._context.rank)
        engine.load_state_dict(state)
        engine.resumed_from = name
        if rank_state is not None:
            restore_random_state(rank_state)
        if self._context.rank == 0:
            say(f"resumed from {name} (epoch {engine.position.epoch})")
        return True

    def _choose(self, resume: str) -> tuple[str, str] | None:
        """The checkpoint to start from; one of this very attempt wins over any wish."""
        own = [name for name in self._store.names() if f"-{self._attempt}-" in name]
        if own or resume in ("auto", "must", "last", "never"):
            name, messages = self._store.newest_valid()
            for message in messages:
                say(message)
            if name is None and resume in ("must", "last"):
                raise CheckpointError(
                    f"checkpoint.resume={resume!r} is invalid: {self._store.uri} holds no "
                    "checkpoint. Set it to auto."
                )
            return None if name is None else (self._store.uri, name)
        if resume == "best":
            best = self._store.pointer("best")
            if best is None:
                raise CheckpointError(
                    f"checkpoint.resume='best' is invalid: {self._store.uri} has no best "
                    "checkpoint. Set it to auto."
                )
            return self._store.uri, best
        root, _, name = resume.rstrip("/").rpartition("/")
        CheckpointStore(root).verify(name)
        return root, name
