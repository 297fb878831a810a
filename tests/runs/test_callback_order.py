"""Which hook is called when: a run of two steps, a validation, and a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from raygnn.loops.callback_list import CallbackList
from raygnn.loops.callbacks import HOOKS, Callback, FunctionCallback
from tests.errors import raises
from tests.small_runs import run_rank, small_config

CALLS: list[tuple[str, tuple[Any, ...]]] = []


def _record(hook: str) -> Any:
    return lambda self, engine, *args: CALLS.append((hook, args))


#: Overrides every hook there is.
Recorder = type(
    "Recorder", (Callback,), {hook: _record(hook) for hook in HOOKS} | {"__module__": __name__}
)

_STEP = [
    "on_train_step_start",
    "before_zero_grad",
    "after_zero_grad",
    "on_train_batch_start",
    "on_train_batch_end",
    "before_sync_grad",
    "after_sync_grad",
    "before_clip_grad_norm",
    "after_clip_grad_norm",
    "before_optimizer_step",
    "after_optimizer_step",
    "on_train_step_end",
    "on_log",
]
_VALIDATION = [
    "on_validation_start",
    "on_validation_step_start",
    "on_validation_step_end",
    "on_validation_step_start",
    "on_validation_step_end",
    "on_validation_end",
]
_CHECKPOINT = ["on_save_checkpoint", "on_checkpoint_written"]
_EXPECTED = [
    "on_setup",
    "on_train_start",
    "on_epoch_start",
    *_STEP,
    *_STEP,
    "on_epoch_end",
    *_VALIDATION,
    *_CHECKPOINT,
    "on_train_end",
    "on_test_end",
    "on_shutdown",
]


def _config(folder: Any, **changes: Any) -> dict[str, Any]:
    return small_config(
        folder,
        loader={"batch_size": 100, "eval_batch_size": 30},
        training={"max_epochs": 1, "log_every": {"steps": 1}},
        callbacks=[f"{__name__}.Recorder"],
        scaling__num_workers=0,
        **changes,
    )


def test_the_order_of_all_hooks(small_bundle_path, tmp_path):
    CALLS.clear()
    run_rank(_config(tmp_path), small_bundle_path)
    assert [hook for hook, _ in CALLS] == _EXPECTED
    given = dict(CALLS)
    assert given["on_epoch_end"] == (0,)
    batch, output = given["on_train_batch_end"]
    assert given["on_train_batch_start"] == (batch,)
    assert output.weight == len(batch.input_id) == given["after_sync_grad"][0].num_samples
    assert given["after_clip_grad_norm"][0] > 0
    assert given["on_log"][0]["train/grad_norm"] == pytest.approx(given["after_clip_grad_norm"][0])
    assert [args for hook, args in CALLS if hook == "on_validation_step_start"] == [(0,), (1,)]
    assert given["on_validation_step_end"][0].index == 1
    assert given["on_validation_end"][0]["val/loss"] > 0
    assert given["on_test_end"][0]["test/loss"] > 0
    assert given["on_checkpoint_written"][0].startswith("step-0000000002-")


def test_a_resumed_run_loads_before_it_starts(small_bundle_path, tmp_path):
    config = _config(tmp_path, checkpoint={"policy": "last"})
    config["training"]["max_steps"] = 1
    run_rank(config, small_bundle_path)
    checkpoint = next((tmp_path / "run" / "checkpoints").glob("step-*"))
    config["training"]["max_steps"] = 2
    config["run"]["name"] = "second"
    config["checkpoint"]["resume"] = str(checkpoint)
    CALLS.clear()
    run_rank(config, small_bundle_path)
    hooks = [hook for hook, _ in CALLS]
    assert hooks[:4] == ["on_setup", "on_load_checkpoint", "on_train_start", "on_epoch_start"]
    assert hooks.count("on_train_step_end") == 1


def test_an_error_is_told_and_shutdown_comes_last(small_bundle_path, tmp_path):
    config = _config(tmp_path, model={"type": "tests.user_code.Fragile"})
    CALLS.clear()
    with raises("run-rank-failed"):
        run_rank(config, small_bundle_path)
    assert [hook for hook, _ in CALLS][-3:] == ["before_sync_grad", "on_exception", "on_shutdown"]


class _Fragile(Callback):
    """Fails where it is asked to."""

    def __init__(self, *hooks: str) -> None:
        self._hooks = hooks

    def on_log(self, engine: Any, metrics: dict[str, float]) -> None:
        if "on_log" in self._hooks:
            raise ValueError("a mistake in on_log")

    def on_exception(self, engine: Any, error: BaseException) -> None:
        if "on_exception" in self._hooks:
            raise ValueError("a mistake in on_exception")


@pytest.mark.parametrize("hooks", [("on_log",), ("on_exception",), ("on_log", "on_exception")])
def test_every_callback_is_closed_whatever_failed_before(hooks):
    """Else files stay open, and the thread that uploads a checkpoint waits for ever."""
    CALLS.clear()
    callbacks = CallbackList(None, [_Fragile(*hooks), Recorder()])
    callbacks.call("on_log", {})
    callbacks.call("on_validation_end", {})
    callbacks.call("on_exception", ValueError())
    callbacks.call("on_shutdown")
    called = [hook for hook, _ in CALLS]
    assert called[-2:] == ["on_exception", "on_shutdown"]
    assert ("on_validation_end" in called) == ("on_log" not in hooks)
    with pytest.raises(ValueError, match=f"a mistake in {hooks[0]}"):
        callbacks.raise_failure()


def test_a_map_of_functions_is_a_callback():
    seen: list[int] = []
    FunctionCallback({"on_epoch_end": lambda engine, epoch: seen.append(epoch)}).on_epoch_end(
        None, 3
    )
    assert seen == [3]
