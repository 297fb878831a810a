from __future__ import annotations

import time

import pytest

from raygnn.data.ingest.schedule import in_process, in_threads
from raygnn.errors import DataError


def test_results_come_in_the_order_of_the_items() -> None:
    def late_first(item: int) -> int:
        time.sleep(0.01 * (item == 0))
        return item * item

    assert in_process(late_first, range(10), "squaring") == [i * i for i in range(10)]
    assert in_process(late_first, [], "squaring") == []


def test_threads_that_fail_take_no_other_item() -> None:
    begun: list[int] = []

    def fail(item: int) -> None:
        begun.append(item)
        time.sleep(0.01)
        raise DataError(f"item {item} is bad")

    with pytest.raises(DataError, match="item 0 is bad"):
        in_threads(fail, range(100), "failing", 4)
    assert len(begun) <= 4


def test_the_first_error_ends_the_rest() -> None:
    done: list[int] = []

    def fail_at_zero(item: int) -> None:
        if item == 0:
            raise DataError("item 0 is bad")
        time.sleep(0.001)
        done.append(item)

    with pytest.raises(DataError, match="item 0 is bad"):
        in_process(fail_at_zero, range(500), "failing")
    assert len(done) < 499
