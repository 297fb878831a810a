from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from raygnn.errors import ConfigError
from raygnn.loops.callback_list import CallbackBase

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine
    from raygnn.loops.task import EvalOutput, StepOutput
    from raygnn.parallel.all_reduce import StepTotals
    from raygnn.sampling.batch import Batch


class Callback(CallbackBase):
    """Base class of callbacks. Override the hooks you need; every hook runs on every rank.

    A hook may read everything of the engine. A hook that calls a collective must do so on all
    ranks. `state_dict` is saved in checkpoints.
    """

    def on_setup(self, engine: Engine) -> None:
        """The engine is built; nothing is restored yet."""

    def on_train_start(self, engine: Engine) -> None:
        """A checkpoint, if there was one, is restored; the first step comes next."""

    def on_train_end(self, engine: Engine) -> None:
        """Training has ended; the best weights are not restored yet."""

    def on_epoch_start(self, engine: Engine, epoch: int) -> None:
        """An epoch starts, or continues after a resume."""

    def on_epoch_end(self, engine: Engine, epoch: int) -> None:
        """All micro-batches of the epoch are done."""

    def on_train_step_start(self, engine: Engine) -> None: ...

    def before_zero_grad(self, engine: Engine) -> None: ...

    def after_zero_grad(self, engine: Engine) -> None: ...

    def on_train_batch_start(self, engine: Engine, batch: Batch) -> None:
        """A micro-batch of this rank is on the device."""

    def on_train_batch_end(self, engine: Engine, batch: Batch, output: StepOutput) -> None:
        """The micro-batch went forward and backward."""

    def before_sync_grad(self, engine: Engine) -> None:
        """Gradients contain this rank's sums; the all-reduce comes next."""

    def after_sync_grad(self, engine: Engine, totals: StepTotals) -> None:
        """Gradients contain the sums over all ranks, divided by the global weight.

        `totals.loss_sum / totals.weight` is the step's loss.
        """

    def before_clip_grad_norm(self, engine: Engine) -> None: ...

    def after_clip_grad_norm(self, engine: Engine, grad_norm: float) -> None:
        """`grad_norm` is the norm before clipping; it may be infinite with fp16-mixed."""

    def before_optimizer_step(self, engine: Engine) -> None: ...

    def after_optimizer_step(self, engine: Engine) -> None: ...

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        """A step is done and counted."""

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        """Weighted means over the log window. Later callbacks see additions."""

    def on_validation_start(self, engine: Engine) -> None: ...

    def on_validation_step_start(self, engine: Engine, index: int) -> None:
        """Before this rank's next validation batch; `index` counts over all ranks."""

    def on_validation_step_end(self, engine: Engine, output: EvalOutput) -> None: ...

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        """Reduced metrics, equal on all ranks."""

    def on_test_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        """Reduced metrics of the test split, with the best weights."""

    def on_save_checkpoint(self, engine: Engine, state: dict[str, Any]) -> None:
        """The state that will be written. A hook may add to it."""

    def on_checkpoint_written(self, engine: Engine, name: str) -> None:
        """The checkpoint is complete on its storage; on rank 0, the pointers name it."""

    def on_load_checkpoint(self, engine: Engine, state: dict[str, Any]) -> None:
        """The state that was read, before it is applied."""

    def on_exception(self, engine: Engine, error: BaseException) -> None:
        """Training ends with an error."""

    def on_shutdown(self, engine: Engine) -> None:
        """The last hook, also after an error. Close files and connections here."""


#: The names of the hooks.
HOOKS = [name for name in vars(Callback) if name.startswith(("on_", "before_", "after_"))]


class FunctionCallback(Callback):
    """Wraps a mapping from hook names to functions."""

    def __init__(self, functions: Mapping[str, Callable[..., None]]) -> None:
        for hook, function in functions.items():
            ConfigError.check_choice(
                "callbacks", hook, HOOKS, "unknown hook", id="callback-hook-unknown"
            )
            setattr(self, hook, function)
