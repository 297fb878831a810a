"""docs/callbacks.md lists every hook with its arguments, and names none that is not there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from raygnn.loops.callbacks import HOOKS, Callback

PAGE = (Path(__file__).parents[3] / "docs" / "callbacks.md").read_text("utf-8")
HOOK_SECTION, NNSCALER, DETERMINED = (
    PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    for title in ("Hooks", "Coming from nnScaler", "Coming from Determined")
)

_NNSCALER_HOOKS = re.findall(
    r"\w+",
    """
    after_setup on_train_start on_train_end on_val_start on_val_end on_epoch_start on_epoch_end
    on_train_step_start on_train_step_end on_val_step_start on_val_step_end
    after_aggregate_train_step_outputs after_aggregate_val_step_outputs before_zero_grad
    after_zero_grad before_sync_grad after_sync_grad before_gnorm_clip after_gnorm_clip
    before_optimizer_step after_optimizer_step on_load_checkpoint on_save_checkpoint
    """,
)
_DETERMINED_HOOKS = re.findall(
    r"\w+",
    """
    on_trial_startup on_trial_shutdown on_training_start on_training_epoch_start
    on_training_epoch_end on_training_workload_end on_validation_start on_validation_end
    on_checkpoint_load_start on_checkpoint_save_start on_checkpoint_write_end
    on_checkpoint_upload_end state_dict load_state_dict
    """,
)


def _rows(section: str) -> list[tuple[str, str]]:
    rows = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line[:3] == "| `"]
    return [(first, second) for first, second in rows]


def test_every_hook_is_listed_with_its_arguments():
    expected = []
    for hook in HOOKS:
        names = list(inspect.signature(getattr(Callback, hook)).parameters)[1:]
        expected.append(f"`{hook}({', '.join(names)})`")
    assert sorted(first for first, _ in _rows(HOOK_SECTION)) == sorted(expected)


@pytest.mark.parametrize(
    ("section", "hooks"), [(NNSCALER, _NNSCALER_HOOKS), (DETERMINED, _DETERMINED_HOOKS)]
)
def test_every_hook_of_others_is_mapped_to_one_that_is_there(section, hooks):
    mapped = {}
    for first, second in _rows(section):
        for name in re.findall(r"`(\w+)", first):
            mapped[name] = (
                [name] if second.startswith("the same") else re.findall(r"`(\w+)", second)
            )
    assert set(hooks) <= set(mapped)
    ours = {*HOOKS, "state_dict", "load_state_dict"}
    for name, targets in mapped.items():
        assert ours & set(targets), name
        hook_like = {t for t in targets if t.startswith(("on_", "before_", "after_"))}
        assert hook_like <= ours, name
