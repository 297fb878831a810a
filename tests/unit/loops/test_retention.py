"""Retention only decides; any sequence of checkpoints leaves what it promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygnn.outputs.checkpoints.names import Retention

_SCORES = {"a": 3.0, "b": 1.0, "c": 2.0}


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention("all"), "abcd"),
        (Retention("last"), "d"),
        (Retention("last", last=2), "cd"),
        (Retention("last", last=9), "abcd"),
        (Retention("best"), "bd"),
        (Retention("best", mode="max"), "ad"),
        (Retention("best", best=2), "bcd"),
        (Retention("best", last=2, best=2), "bcd"),
        (Retention("best", best=9), "abcd"),
    ],
)
def test_what_stays(retention: Retention, kept: str) -> None:
    obsolete = retention.obsolete(list("abcd"), _SCORES, needed=())
    assert set("abcd") - set(obsolete) == set(kept)


def test_what_a_pointer_names_stays_under_any_policy() -> None:
    for policy in ("all", "best", "last", "none"):
        assert "a" not in Retention(policy).obsolete(list("abcd"), _SCORES, needed={"a"})


def test_of_equal_scores_the_first_is_the_best() -> None:
    scores = dict.fromkeys("abc", 1.0)
    assert Retention("best").obsolete(list("abcd"), scores, needed=()) == ["b", "c"]


@given(
    values=st.lists(st.none() | st.floats(-10, 10), min_size=1, max_size=30),
    policy=st.sampled_from(["all", "best", "last"]),
    last=st.integers(1, 4),
    best=st.integers(1, 4),
    mode=st.sampled_from(["min", "max"]),
)
def test_pruning_after_each_save_leaves_what_pruning_at_the_end_would(
    values: list[float | None], policy: str, last: int, best: int, mode: str
) -> None:
    """Whatever was deleted on the way is never missed later, and pointers never dangle."""
    retention = Retention(policy, last, best, mode)
    sign = 1.0 if mode == "min" else -1.0
    there: list[str] = []
    scores: dict[str, float] = {}
    best_name, best_value = None, float("inf")
    for number, value in enumerate(values):
        name = f"{number:03d}"
        there.append(name)
        if value is not None:
            scores[name] = value
            if sign * value < best_value:
                best_name, best_value = name, sign * value
        needed = {name}
        if retention.keeps_best and best_name is not None:
            needed.add(best_name)
        for gone in retention.obsolete(there, scores, needed):
            there.remove(gone)
            scores.pop(gone, None)
        assert needed <= set(there)
    everything = [f"{number:03d}" for number in range(len(values))]
    all_scores = {everything[i]: v for i, v in enumerate(values) if v is not None}
    expected = set(everything[-last:])
    if policy == "all":
        expected = set(everything)
    elif policy == "best":
        ranked = sorted(all_scores, key=lambda n: (sign * all_scores[n], n))
        expected |= set(ranked[:best])
    assert set(there) == expected
