from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raygnn.errors import FAILURES

#: Hooks that are called even after a failure, so that callbacks can close files.
_CLOSING = ("on_exception", "on_shutdown")


class CallbackBase:
    """A callback without its hooks, whose types import the engine, which imports this file."""

    #: Whether other ranks skip the hooks.
    only_on_rank_0 = False

    def state_dict(self) -> dict[str, Any]:
        """State for a resume: plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class CallbackList:
    """Calls every callback's hook in order of registration.

    A hook may fail on one rank only, such as one that writes files on rank 0. Raising there would
    leave the other ranks waiting in their next collective. So the exception is stored, and only
    hooks that end a run are called until the engine takes it where all ranks agree on failures: in
    the step's all-reduce, before a checkpoint, and at the end.
    """

    def __init__(self, engine: Any, callbacks: Sequence[CallbackBase]) -> None:
        self._engine = engine
        self._callbacks = {f"{i}:{type(c).__qualname__}": c for i, c in enumerate(callbacks)}
        self._failure: BaseException | None = None

    def listen(self, *hooks: str) -> bool:
        return any(
            getattr(getattr(callback, hook), "__qualname__", "") != f"Callback.{hook}"
            for callback in self._callbacks.values()
            for hook in hooks
        )

    def call(self, hook: str, *args: Any) -> None:
        for callback in self._callbacks.values():
            if self._failure is not None and hook not in _CLOSING:
                return
            if callback.only_on_rank_0 and self._engine.context.rank != 0:
                continue
            try:
                getattr(callback, hook)(self._engine, *args)
            except FAILURES as error:  # taken by the engine, which raises it
                error.add_note(f"in {hook} of {type(callback).__qualname__}")
                self._failure = self._failure or error

    def take_failure(self) -> BaseException | None:
        """Returns and clears the exception of a hook on this rank."""
        failure, self._failure = self._failure, None
        return failure

    def raise_failure(self) -> None:
        failure = self.take_failure()
        if failure is not None:
            raise failure

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """The state of each callback. One that fails has no state; its exception is stored."""
        state: dict[str, dict[str, Any]] = {}
        for key, callback in self._callbacks.items():
            try:
                state[key] = callback.state_dict()
            except FAILURES as error:  # taken by the engine, which raises it
                error.add_note(f"in state_dict of {type(callback).__qualname__}")
                self._failure = self._failure or error
        return state

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        for key, callback in self._callbacks.items():
            if key in state:
                callback.load_state_dict(state[key])
