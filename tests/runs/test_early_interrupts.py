"""Ctrl-C while a command imports its modules ends it quietly."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", ["train", "tune", "infer", "prepare"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_still_imports_ends_with_130_and_no_traceback(command, number):
    """-X importtime writes a line after each import: that of the package comes first."""
    words = [sys.executable, "-X", "importtime", "-m", f"raygnn.{command}"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert any(line.split()[-1] == "raygnn" for line in process.stderr)
            process.send_signal(number)
            process.send_signal(number)
            lines = [line for line in process.stderr if not line.startswith("import time:")]
            status = process.wait(60)
        finally:
            process.kill()
    if number == signal.SIGTERM:
        assert (status, lines) == (-signal.SIGTERM, [])
    else:
        assert (status, lines) == (130, ["stopped by SIGINT: nothing was started\n"])


def test_a_program_that_imports_raygnn_keeps_its_own_handler():
    code = """if True:
        import signal, raygnn
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_ignored_ctrl_c_stays_ignored():
    code = """if True:
        import signal, subprocess, sys
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        words = [sys.executable, "-X", "importtime", "-m", "raygnn.train"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            assert any(line.split()[-1] == "raygnn" for line in process.stderr)
            process.send_signal(signal.SIGINT)
            process.stderr.read()
        print(process.returncode)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"  # CONFIG is missing
