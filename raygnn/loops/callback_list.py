"""Calls the callbacks of a run; a failure on one rank waits until all ranks agree on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raygnn.errors import FAILURES

#: Hooks that every callback gets, whatever failed before: what is open has to be closed.
_CLOSING = ("on_exception", "on_shutdown")


class CallbackBase:
    """The part of a callback that the list uses besides its hooks."""

    def state_dict(self) -> dict[str, Any]:
        """State for a resume: plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""


class CallbackList:
    """Calls every callback's hook in order of registration.

    A hook may fail on one rank only, as one that writes files on rank 0 does. If it raised there,
    the other ranks would wait for that one in their next collective. So its exception is kept,
    and no further hook is called but those that end a run, until the engine takes it where all
    ranks agree on failures: in the step's all-reduce, before a checkpoint, at the end.

    Args:
        engine: the first argument of each hook.
    """

    def __init__(self, engine: object, callbacks: Sequence[CallbackBase]) -> None:
        self._engine = engine
        self._callbacks = tuple(callbacks)
        self._failure: BaseException | None = None

    def listen(self, *hooks: str) -> bool:
        """Whether any callback does something in one of these hooks."""
        return any(
            getattr(getattr(callback, hook), "__qualname__", "") != f"Callback.{hook}"
            for callback in self._callbacks
            for hook in hooks
        )

    def call(self, hook: str, *args: Any) -> None:
        for callback in self._callbacks:
            if self._failure is not None and hook not in _CLOSING:
                return
            try:
                getattr(callback, hook)(self._engine, *args)
            except FAILURES as error:  # taken by the engine, which raises it
                error.add_note(f"in {hook} of {type(callback).__qualname__}")
                self._failure = self._failure or error

    def take_failure(self) -> BaseException | None:
        """The exception of a hook on this rank since the last call."""
        failure, self._failure = self._failure, None
        return failure

    def raise_failure(self) -> None:
        """Raises what a hook raised on this rank, if any did."""
        failure = self.take_failure()
        if failure is not None:
            raise failure

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """The state of each callback. A failing one has none; its failure is kept like a hook's."""
        state: dict[str, dict[str, Any]] = {}
        for i, callback in enumerate(self._callbacks):
            try:
                state[self._key(i)] = callback.state_dict()
            except FAILURES as error:  # taken by the engine, which raises it
                error.add_note(f"in state_dict of {type(callback).__qualname__}")
                self._failure = self._failure or error
        return state

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        for i, callback in enumerate(self._callbacks):
            if self._key(i) in state:
                callback.load_state_dict(state[self._key(i)])

    def _key(self, index: int) -> str:
        return f"{index}:{type(self._callbacks[index]).__qualname__}"
