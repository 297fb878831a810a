"""What a sample of a device depends on besides the graph, made by the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.sampling.device_times import DeviceTimes
from raygnn.sampling.growing_subgraph import DisjointIds
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import SampleRequest
from raygnn.sampling.rng import hop_key
from raygnn.sampling.seeds import exclusions
from raygnn.sampling.stores import LocalGraphStore
from raygnn.sampling.tensor_record import TensorRecord

#: Greater than any code of `DisjointIds`, any dense id and any position of an edge.
BEYOND = 1 << 62
#: Edges of each type that a sample may exclude beyond twice those of the reference.
_SPARE_SKIPS = 64


@dataclass(frozen=True, kw_only=True)
class SampleInputs(TensorRecord):
    """The inputs of a sample. All tensors have the same sizes in each sample.

    Attributes:
        seeds: by node type, int64 [num_seeds], dense ids.
        keys: int64 [num_hops, num_edge_types], keys of the draws.
        skips: by edge type, int64, ascending CSC positions of the edges to ignore. If only one
            neighborhood ignores each, its number times the number of edges is added.
        isolated: by node type, int64 [num_seeds], ascending dense ids of the seeds without edges.
        numbered: the neighborhoods of the seeds; None if they share one.
    """

    seeds: dict[str, Tensor]
    keys: Tensor
    skips: dict[EdgeType, Tensor]
    isolated: dict[str, Tensor]
    numbered: Neighborhoods | None


@dataclass(frozen=True, kw_only=True)
class Neighborhoods(TensorRecord):
    """Neighborhoods of seeds, with room for one of each seed.

    Attributes:
        of_seeds: by node type, int64 [num_seeds], number of the neighborhood of each seed.
        salts: int64 [num_numbers], bits of the inputs of draws.
        times: [num_numbers], time of the seeds; None without times.
        limits: [num_limits, num_numbers], see `DeviceTimes`; None without times.
        newest: int64 [1], number of a neighborhood with the latest time.
    """

    of_seeds: dict[str, Tensor]
    salts: Tensor
    times: Tensor | None
    limits: Tensor | None
    newest: Tensor


class InputsMaker:
    """Makes inputs from requests.

    Args:
        reference: a request like those of all samples. If it excludes edges, samples may exclude
            twice as many of each type, and some more.
        times: of the edges; None without temporal sampling.
    Attributes:
        num_numbers: neighborhoods for which there is room.
        skips_by_number: whether only one neighborhood ignores each excluded edge.
    """

    def __init__(
        self, sampler: NeighborSampler, reference: SampleRequest, times: DeviceTimes | None
    ) -> None:
        self._sampler, self._times = sampler, times
        self._num_seeds = {t: len(seeds) for t, seeds in reference.seeds.items()}
        self.num_numbers = sum(self._num_seeds.values())
        self.skips_by_number = reference.exclude_for is not None
        found = self._find_excluded(reference)
        edge_types = sampler.fanouts if found else ()
        self._num_skips = {t: 2 * len(found.get(t, ())) + _SPARE_SKIPS for t in edge_types}

    def __call__(self, request: SampleRequest) -> SampleInputs | None:
        """The inputs of a sample, on the host; None if it excludes more edges than fit."""
        found, sampler = self._find_excluded(request), self._sampler
        if any(len(edges) > self._num_skips.get(t, 0) for t, edges in found.items()):
            return None
        keys = [
            [hop_key(request.key, hop, t) for t in sampler.fanouts]
            for hop in range(sampler.num_hops)
        ]
        return SampleInputs(
            seeds={t: torch.from_numpy(seeds) for t, seeds in request.seeds.items()},
            keys=torch.from_numpy(np.array(keys, np.uint64).view(np.int64)),
            skips={t: _filled(found.get(t, ()), size) for t, size in self._num_skips.items()},
            isolated={
                t: _filled(np.sort(nodes), self._num_seeds[t])
                for t, nodes in (request.isolated or {}).items()
            },
            numbered=self._neighborhoods(request) if sampler.is_numbered else None,
        )

    def _find_excluded(self, request: SampleRequest) -> dict[EdgeType, np.ndarray]:
        """`SampleInputs.skips`, without room for others."""
        graph = self._sampler.graph
        assert isinstance(graph, LocalGraphStore)
        code = self._ids(request).code if self.skips_by_number else None
        excluded = exclusions(graph, request.exclude or {}, request.exclude_for or {}, code)
        return {t: graph.picker(t).find_excluded(pairs) for t, pairs in excluded.items()}

    def _neighborhoods(self, request: SampleRequest) -> Neighborhoods:
        ids = self._ids(request)
        salts, times = ids.inputs()
        of_seeds = {t: torch.from_numpy(numbers) for t, numbers in ids.numbers.items()}
        latest = limits = None
        if self._times is not None and times is not None:
            latest, limits = self._with_room(times), self._with_room(self._times.limits(times))
        return Neighborhoods(
            of_seeds=of_seeds,
            salts=self._with_room(salts.view(np.int64)),
            times=latest,
            limits=limits,
            newest=torch.tensor([0 if times is None else int(times.argmax())]),
        )

    def _ids(self, request: SampleRequest) -> DisjointIds:
        sampler = self._sampler
        return DisjointIds(
            sampler.graph,
            request.seeds,
            sampler.temporal,
            request.times,
            disjoint=sampler.disjoint,
            salts=request.salts,
        )

    def _with_room(self, rows: np.ndarray) -> Tensor:
        """[..., num_numbers]."""
        out = np.zeros((*rows.shape[:-1], self.num_numbers), rows.dtype)
        out[..., : rows.shape[-1]] = rows
        return torch.from_numpy(out)


def _filled(rows: Sequence[int] | np.ndarray, size: int) -> Tensor:
    """int64 [size], ascending: the rows, then numbers beyond them."""
    filled = np.arange(BEYOND, BEYOND + size)
    filled[: len(rows)] = rows
    return torch.from_numpy(filled)
