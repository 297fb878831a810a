"""Arguments of generators, and random arrays as pure functions of (seed, stream, position).

Counter-based, so a stream never depends on other draws, and independent of numpy's generators,
whose streams may change between releases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from raygnn.config.arguments import section_of
from raygnn.config.validation import broken_section
from raygnn.data.hashing import seed_key, splitmix64_array
from raygnn.errors import ConfigError, Problem, shown

FIRST_TIME_S = 1_700_000_000  # Unix time of the earliest event of a graph (November 2023)
YEAR_S = 365 * 24 * 3600  # all times are within this year
_CHUNK = 1 << 18  # draws at a time, so that temporaries stay within the caches
_TWO_PI = 2 * np.pi


def stream_key(seed: int, stream: str) -> int:
    """The key of a named stream; the seed may be any integer."""
    key = seed_key(seed)
    for byte in stream.encode():
        key = int(splitmix64_array(np.array([byte]), key)[0])
    return key


def draw_bits(seed: int, stream: str, start: int, stop: int) -> np.ndarray:
    """uint64 [stop - start]: the draws at positions start..stop of a stream."""
    return splitmix64_array(np.arange(start, stop), stream_key(seed, stream))


def draw_uniform(seed: int, stream: str, count: int) -> np.ndarray:
    """float64 [count], uniform in [0, 1) with 53 random bits."""

    def fill(start: int, stop: int) -> np.ndarray:
        return (draw_bits(seed, stream, start, stop) >> np.uint64(11)) * 2.0**-53

    return _in_chunks(fill, count, np.float64)


def draw_integers(seed: int, stream: str, count: int, high: int | np.ndarray) -> np.ndarray:
    """int64 [count], uniform in [0, high); high is one bound or one per draw, each below 2^53."""
    return (draw_uniform(seed, stream, count) * high).astype(np.int64)


def draw_normal(seed: int, stream: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32, standard normal; Box-Muller, two numbers from each 64 bits."""
    count = int(np.prod(shape, dtype=np.int64))

    def fill(start: int, stop: int) -> np.ndarray:
        bits = draw_bits(seed, stream, start, stop)
        # the upper word is shifted by half a unit, so that the logarithm never sees zero
        upper = ((bits >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
        lower = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) * (_TWO_PI * 2.0**-32)
        radius = np.sqrt(-2 * np.log(upper)).astype(np.float32)
        angle = lower.astype(np.float32)
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)

    pairs = _in_chunks(fill, (count + 1) // 2, np.float32, (2,))
    return pairs.reshape(-1)[:count].reshape(shape)


def draw_permutation(seed: int, stream: str, count: int) -> np.ndarray:
    """int64 [count]: a random order of 0..count-1 (equal keys, one in 2^64, keep their order)."""
    return np.argsort(draw_bits(seed, stream, 0, count), kind="stable")


def _in_chunks(
    fill: Callable[[int, int], np.ndarray],
    count: int,
    dtype: type[np.generic],
    item_shape: tuple[int, ...] = (),
) -> np.ndarray:
    out = np.empty((count, *item_shape), dtype)
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        out[start:stop] = fill(start, stop)
    return out


def field(description: str, low: float | None = None, high: float | None = None) -> Any:
    return Field(description=description, ge=low, le=high)


def argument_problems(generator: Callable[..., Any], args: Mapping[str, Any]) -> list[Problem]:
    """All problems of the arguments, with the keys of the config section data.synthetic."""
    section = section_of(generator)
    problems = []
    for problem in broken_section(section, args):
        name = str(problem.path[0])
        remedy = problem.remedy
        if known := section.model_fields.get(name):
            example = "null" if known.default is None else str(known.default).lower()
            remedy = f"Set {known.description}, as in {name}: {example}"
        place = ("data", "synthetic", name)
        problems.append(replace(problem, path=place, remedy=remedy, shown=shown(args[name])))
    return problems


def checked(generator: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a generator: arguments are checked before it runs, and passed by name only."""

    @functools.wraps(generator)
    def checked_generator(**args: Any) -> Any:
        if problems := argument_problems(generator, args):
            raise ConfigError(problems)
        return generator(**args)

    return checked_generator
