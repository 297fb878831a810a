"""An epoch's order of seeds in which all classes come equally often."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.hashing import splitmix64
from raygnn.sampling.rng import (
    RNG_VERSION,
    chain_key,
    half_bits,
    permuted,
    seed_order,
    text_key,
)


class BalancedOrder:
    """Gives the places of an epoch to the classes in turn, then shuffles the places.

    An epoch has as many places as there are examples; classes differ by one place at most. The
    examples of a class come in a permutation, and in another one when each has come once. The next
    epoch goes on where the last one ended: no example comes a second time before all others of its
    class have come. The order is a pure function with random access, like `seed_order`.

    Args:
        classes: integers [num_examples], the class of each; those that do not occur do not count.
    """

    def __init__(self, classes: np.ndarray, seed: int) -> None:
        present, class_of, counts = np.unique(classes, return_inverse=True, return_counts=True)
        self._seed = seed
        self._members = np.argsort(class_of, kind="stable")  # [num_examples], class by class
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._half_bits = np.array([half_bits(count) for count in counts.tolist()], np.uint64)
        key = chain_key(RNG_VERSION, seed, text_key("balanced seeds"))
        self._keys = np.array([chain_key(key, label) for label in present.tolist()], np.uint64)

    def places(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Positions of the examples at places `start` to `stop` of an epoch.

        Args:
            start: 0 <= start <= stop <= num_examples.
        Returns:
            int64 [stop - start], in [0, num_examples); a position may repeat.
        """
        num_examples = len(self._members)
        turns = seed_order(num_examples, self._seed, epoch, start, stop)
        positions = np.empty(stop - start, np.int64)
        _choose(turns, epoch, self._starts, self._half_bits, self._keys, positions)
        return self._members[positions]


@njit(nogil=True, cache=True)
def _choose(turns, epoch, starts, half_bits, keys, out):  # type: ignore[no-untyped-def]
    num_examples, num_classes = starts[-1], len(keys)
    for i in range(len(turns)):
        label = turns[i] % num_classes
        num_places = (num_examples - label + num_classes - 1) // num_classes  # in each epoch
        size = starts[label + 1] - starts[label]
        number = epoch * num_places + turns[i] // num_classes
        key = splitmix64(keys[label] ^ np.uint64(number // size))
        chosen = permuted(np.uint64(number % size), np.uint64(size), half_bits[label], key)
        out[i] = starts[label] + chosen
