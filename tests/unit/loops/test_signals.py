from __future__ import annotations

import signal
import sys
import time

import pytest

from raygnn.loops.signals import Terminated, signals_as_interrupts, signals_as_notices
from tests.wait_until import wait_until


class _Finalized:
    """Gets a signal while Python finalizes it, where nothing that is raised goes anywhere."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_a_signal_that_a_finalizer_drops_comes_again(number, error, capsys):
    hook = sys.unraisablehook

    def command() -> None:
        _Finalized(number)
        time.sleep(60)

    begun_s = time.monotonic()
    with pytest.raises(error), signals_as_interrupts():
        command()
    assert time.monotonic() - begun_s < 50, "the wait went on"
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_a_signal_that_a_finalizer_drops_is_a_notice_of_the_training_that_has_begun():
    causes: list[str] = []
    with signals_as_interrupts():
        _Finalized(signal.SIGINT)
        with signals_as_notices(causes.append):
            wait_until(lambda: bool(causes), limit_s=60)
    assert causes == ["SIGINT"]


def test_other_errors_of_finalizers_are_shown(monkeypatch):
    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: shown.append(args.exc_type))
    with signals_as_interrupts():
        Broken()
    assert shown == [ValueError]


def test_an_ignored_ctrl_c_stays_ignored_in_a_command():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_as_interrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
