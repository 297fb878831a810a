"""A second training, on training and validation rows, for as long as validation found best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from raygnn.config import Period
from raygnn.console import say
from raygnn.loops.blend import GNN
from raygnn.loops.callback_list import CallbackBase
from raygnn.loops.engine import Engine
from raygnn.loops.tasks.blended_task import BlendedTask

STOP_REASON = "training.refit"


def refit(
    engine: Engine,
    callbacks: Sequence[CallbackBase],
    initialize: Callable[[nn.Module], object] | None,
) -> dict[str, int]:
    """Replaces the weights of a concluded engine. What validation chose stays.

    Collective: all ranks must call.

    Args:
        callbacks: of the second training.
        initialize: see `Engine`.
    Returns:
        Numbers of rows and of optimizer steps, as `refit_rows` and `refit_steps`; empty without
        validation rows.
    """
    task, config, module = engine.task, engine.config, engine.optimization.module
    assert isinstance(task, BlendedTask)
    if not engine.has_validation:
        return {}
    epochs = engine.best.position.step / engine.steps_per_epoch
    steps = 0
    with task.refitting() as num_rows:
        if task.blend is None or GNN in task.blend.shares:
            per_epoch = -(-task.loader("train").num_batches // config.batch.num_micro_batches)
            steps = max(1, round(epochs * per_epoch))
            say(
                f"training.refit: training again on {num_rows:,} training and validation rows, "
                f"{steps:,} steps",
                "refit",
                rows=num_rows,
                steps=steps,
            )
            # The planned length follows the rows, and with it the learning rate.
            planned, growth = config.training.max_steps, per_epoch / engine.steps_per_epoch
            limits = {
                "max_steps": planned and max(steps, round(planned * growth)),
                "max_samples": None,
                "max_time_s": None,
                "validate_at_start": False,
                "validate_every": Period(steps=steps),
            }
            training = config.training.model_copy(update=limits)
            changed = config.model_copy(update={"training": training, "early_stopping": None})
            loaded = replace(engine.loaded, config=changed)

            def start(fresh: nn.Module) -> None:
                if initialize is not None:
                    initialize(fresh)
                for old, new in zip(module.modules(), fresh.modules(), strict=True):
                    if getattr(old, "is_computed", False):  # by validation
                        new.load_state_dict(old.state_dict())

            again = Engine(task, loaded, engine.context, callbacks, initialize=start)
            again.stop_at = (steps, STOP_REASON)
            again.train()
            again.best.restore(module)
            task.model = module
    return {"refit_rows": num_rows, "refit_steps": steps}
