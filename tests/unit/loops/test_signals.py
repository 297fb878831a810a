from __future__ import annotations

import signal

import pytest

from raygnn.loops.signals import Terminated, signals_as_interrupts, signals_as_notices


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_an_interrupt_that_other_code_dropped_ends_the_command_before_training(number, error):
    with signals_as_interrupts():
        with pytest.raises(error):
            signal.raise_signal(number)
        with pytest.raises(error), signals_as_notices(lambda cause: None):
            pytest.fail("training starts")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_ctrl_c_stays_ignored_in_a_command():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_as_interrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_notice_is_no_interrupt():
    causes: list[str] = []
    with signals_as_interrupts(), signals_as_notices(causes.append):
        signal.raise_signal(signal.SIGINT)
    assert causes == ["SIGINT"]
