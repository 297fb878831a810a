"""Retention only decides; `test_checkpointer` prunes after each save."""

from __future__ import annotations

import pytest

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
