"""What an interrupted sweep frees."""

from __future__ import annotations

import pytest

from raygnn.runtime import sweep

_OLD, _NEW, _OTHER = ("a" * 36, "b" * 36, "c" * 36)


def test_places_are_freed_once_their_controller_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    looks = [{_OLD: True, _NEW: False}, {_OLD: True, _NEW: True}]

    def held() -> dict[str, bool]:
        if len(looks) > 1:
            return looks.pop(0)
        return {place: is_dead for place, is_dead in looks[0].items() if place not in removed}

    monkeypatch.setattr(sweep, "held_places", held)
    monkeypatch.setattr(
        sweep, "remove_placement_group", lambda group: removed.append(group.id.hex())
    )
    sweep.free_places_of_trials({_OLD: True})
    assert removed == [_NEW]


def test_places_of_what_lives_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "held_places", lambda: {_OTHER: False})
    monkeypatch.setattr(sweep, "remove_placement_group", lambda group: pytest.fail("removed"))
    monkeypatch.setattr(sweep, "_WITHIN_S", 0.3)
    sweep.free_places_of_trials({})
