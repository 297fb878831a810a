"""Batch arithmetic."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygnn.config import BatchPlan, load_config
from raygnn.config.loader_section import broken_batch_rules, plan_batches
from tests.errors import error_cases, raises

_small = st.integers(1, 64)


_SECTIONS = {"batch_size": "loader", "num_workers": "scaling", "type": "sampling"}


@pytest.mark.parametrize(
    ("keys", "plan"),
    [
        ({}, (1024, 1, 1, 1024)),
        ({"num_workers": 0}, (1024, 1, 1, 1024)),
        ({"batch_size": 8, "num_workers": 2, "accumulate_grad_batches": 3}, (8, 3, 2, 48)),
        ({"batch_size": 8, "num_workers": 2, "global_batch_size": 64}, (8, 4, 2, 64)),
        ({"num_workers": 2, "global_batch_size": 64, "accumulate_grad_batches": 4}, (8, 4, 2, 64)),
        ({"batch_size": "null", "num_workers": 2, "global_batch_size": 64}, (32, 1, 2, 64)),
        ({"global_batch_size": 4096}, (1024, 4, 1, 4096)),
        ({"batch_size": 8, "num_workers": [1, 4], "accumulate_grad_batches": 2}, (8, 2, 4, 64)),
        # On the whole graph: one micro-batch a step, for any number of workers.
        ({"type": "full", "num_workers": 3}, (1024, 1, 1, 1024)),
        ({"type": "full", "batch_size": "null"}, (1, 1, 1, 1)),
    ],
)
def test_the_third_follows_from_two(keys: dict[str, Any], plan: tuple[int, ...]) -> None:
    given = [f"--{_SECTIONS.get(key, 'training')}.{key}={value}" for key, value in keys.items()]
    assert astuple(load_config({}, given).config.batch) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    error_cases(
        """
{loader: {batch_size: 8}, scaling: {num_workers: 2}, training: {global_batch_size: 64,
accumulate_grad_batches: 3}}
    config-batch-size | 8 | 2 | 3 | 48 | 64
{loader: {batch_size: 10}, scaling: {num_workers: 2}, training: {global_batch_size: 64}}
    config-batch-size | 64 | 10 | 2 | 20 | 60
{loader: {batch_size: null}, scaling: {num_workers: 3}, training: {global_batch_size: 64}}
    config-batch-size | 64 | 3 | 1 | 63
loader: {batch_size: null}
    config-batch-size | loader.batch_size=None
training: {global_batch_size: 512}
    config-batch-size
"""
    ),
)
def test_an_inconsistent_triple_prints_the_arithmetic(text: str, message: tuple[str, ...]) -> None:
    with raises(*message):
        load_config(text)


@given(batch_size=_small, accumulate=_small, workers=st.integers(1, 8))
def test_any_two_give_the_same_plan(batch_size: int, accumulate: int, workers: int) -> None:
    whole = plan_batches(batch_size, accumulate, workers, None)
    total = whole.global_batch_size
    assert total == batch_size * accumulate * workers
    for given_two in ((batch_size, None), (None, accumulate), (batch_size, accumulate)):
        arguments = (*given_two, workers, total)
        assert list(broken_batch_rules(*arguments)) == []
        assert plan_batches(*arguments) == whole


@given(
    batch_size=st.none() | _small,
    accumulate=st.none() | _small,
    workers=st.integers(1, 8),
    total=st.none() | st.integers(1, 512),
)
def test_what_breaks_no_rule_adds_up(
    batch_size: int | None, accumulate: int | None, workers: int, total: int | None
) -> None:
    if list(broken_batch_rules(batch_size, accumulate, workers, total)):
        return
    plan = plan_batches(batch_size, accumulate, workers, total)
    assert plan.batch_size * plan.accumulate * plan.world_size == plan.global_batch_size
    assert batch_size in (None, plan.batch_size)
    assert accumulate in (None, plan.accumulate)
    assert total in (None, plan.global_batch_size)


def test_a_saved_config_still_follows_with_other_workers() -> None:
    text = "training: {global_batch_size: 64, accumulate_grad_batches: 4}"
    saved = load_config(text).saved_yaml()
    again = load_config(saved, ["--scaling.num_workers", "2"])
    assert again.config.batch == BatchPlan(8, 4, 2, 64)
