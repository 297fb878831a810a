"""Anchor-based link prediction: embeddings in which linked nodes score high."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from raygnn.config import Component, build
from raygnn.data.link_target import LinkTarget, LinkTargetArguments
from raygnn.data.message_graph import message_graph
from raygnn.errors import ConfigError
from raygnn.loops.build_encoder import build_encoder, encoder_signature, feature_widths
from raygnn.loops.build_sampler import build_sampler
from raygnn.loops.full_ranking import FullRankingEvaluation
from raygnn.loops.link_objective import LinkObjective
from raygnn.loops.model_signature import LinkOutput, ModelSignature
from raygnn.loops.task import EvalOutput, StepOutput, Task, TaskEnvironment
from raygnn.losses import Candidates, LinkScores, score_links
from raygnn.metrics import as_metric
from raygnn.models.link_predictor import LinkPredictor
from raygnn.sampling.link_loader import LinkLoader
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore

_METRICS = ("mrr", "hits", "auc", "ap")


class LinkPrediction(Task):
    """Learns to score the links of one edge type above other pairs.

    A batch is anchors, links of theirs, hard negatives where the graph declares any, and random
    negatives, in one sampled subgraph: each node is encoded once. Message edges that repeat the
    links of the batch are left out of it; edges of validation and test carry no messages in
    training. `data.splits` splits the links (hash on the unordered pair, or temporal); without it
    the split column of the edges does.

    Args:
        edge_type: `src__rel__dst` of the links; null takes the only one.
        labels: the links are the graph's label edges, not its message edges.
        feature: feature column of the input.
        decoder: `{type, args}`: inner_product, cosine, hadamard_mlp or distmult.
        num_random_negatives: per batch in training, drawn over all nodes of the target type.
        num_random_negatives_eval: the same in evaluation, one fixed set for all batches.
        negatives: `uniform`, or `degree` for degree^0.75.
        max_labels_per_anchor: links of an anchor in one epoch, drawn anew in each; null takes all.
        remove_accidental_hits: whether a candidate that is a known link of the anchor is masked.
        disjoint_train_ratio: share of the training links that is for the loss only.
        test_messages: `transductive` (training and validation edges) or `inductive` (training).
        full_ranking: also ranks all nodes of the target type for each anchor, known links left out.
    """

    def __init__(self, **args: Any) -> None:
        self._arguments = LinkTargetArguments.of(args)
        self._loaders: dict[str, LinkLoader | None] = {}

    def setup(self, env: TaskEnvironment) -> None:
        """Finds and splits the links.

        Raises:
            ConfigError: an argument names something that the graph does not have.
            DataError: the links cannot be split.
        """
        super().setup(env)
        self.target = LinkTarget.find(env.bundle, env.loaded.config, self._arguments)
        anchor_type, _, target_type = self.target.edge_type
        self.node_types = (anchor_type, target_type)
        self._features = LocalFeatureStore(env.bundle)
        self.objective = LinkObjective(env.loaded, env.device)
        self.step_metrics = (*self.step_metrics, *self.objective.step_metrics)
        self._graphs: dict[str, LocalGraphStore] = {}
        self._ranking: FullRankingEvaluation | None = None
        if self._arguments.full_ranking:
            self._ranking = FullRankingEvaluation(env.bundle.num_nodes(target_type))

    def signature(self, model: nn.Module) -> ModelSignature:
        """The links, and what their nodes are embedded from."""
        assert isinstance(model, LinkPredictor)
        output = LinkOutput(self.target.edge_type, self._arguments.labels)
        feature = self._arguments.feature
        return encoder_signature(model.encoder, self.env.bundle, feature, output)

    def build_model(self) -> nn.Module:
        loaded = self.env.loaded
        config = loaded.config
        width = config.model.args.get("out_channels")
        chosen = None
        if width is None:
            width = chosen = int(config.model.args.get("hidden_channels", 256))
        encoder = build_encoder(loaded, self.env.bundle, self._arguments.feature, chosen)
        decoder = build(
            Component.model_validate(dict(self._arguments.decoder)),
            "decoder",
            loaded.allow_modules,
            in_channels=width,
        )
        return LinkPredictor(encoder, decoder)

    def build_metrics(self) -> Sequence[Any]:
        loaded = self.env.loaded
        chosen = loaded.config.metrics or [Component(type=name) for name in _METRICS]
        num_candidates = 1 + self._arguments.num_random_negatives_eval
        injected: Any = {"num_outputs": num_candidates, "problem": "link_prediction"}
        built = [
            as_metric(build(metric, "metric", loaded.allow_modules, **injected), **injected)
            for metric in chosen
        ]
        return built if self._ranking is None else [*built, self._ranking]

    def loader(self, split: str) -> LinkLoader | None:
        if split not in self._loaders:
            self._loaders[split] = self._build_loader(split)
        return self._loaders[split]

    def training_step(self, batch: Any) -> StepOutput:
        rows = self.model(batch)
        return self._loss(batch, rows, self._score(batch, rows, fixed_candidates=False))

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        loader = self.loader(split)
        assert loader is not None
        if self._ranking is not None:
            self._ranking.prepare(self, split)
        with closing(loader.iterate(0, stop=num_batches)) as batches:
            for batch in batches:
                moved = batch.to(self.env.device)
                rows = self.model(moved)
                scores = self._score(moved, rows, fixed_candidates=True)
                output = self._loss(moved, rows, scores)
                candidates = scores.candidate.masked_fill(scores.mask, -torch.inf)
                prediction = torch.cat([scores.positive.unsqueeze(1), candidates], dim=1)
                ids = _link_numbers(batch.label_id, self.env.bundle.num_nodes(self.node_types[1]))
                yield EvalOutput(
                    batch.index,
                    ids,
                    float(output.loss_sum),
                    output.weight,
                    prediction,
                    batch.label_id[0],
                    output.metrics,
                )

    def close(self) -> None:
        for loader in self._loaders.values():
            if loader is not None:
                loader.close()

    def predictor(self) -> LinkPredictor:
        """The model without its wrapping."""
        inner = self.model.module if hasattr(self.model, "module") else self.model
        assert isinstance(inner, LinkPredictor)
        return inner

    def messages(self, split: str) -> LocalGraphStore:
        """The graph that messages flow along in a split."""
        if split not in self._graphs:
            inductive = self._arguments.test_messages == "inductive"
            direction = self.env.loaded.config.sampling.direction
            graph = message_graph(self.env.bundle, [self.target.link], split, inductive)  # type: ignore[arg-type]
            self._graphs[split] = LocalGraphStore(graph, direction)
        return self._graphs[split]

    def features_of(self, ids: Any) -> Any:
        """Input features of nodes of the anchor type."""
        return self._features.gather(self.node_types[0], self._arguments.feature, ids)

    def _build_loader(self, split: str) -> LinkLoader | None:
        supervision = self.target.splits[split]
        if supervision.num_links == 0:
            return None
        config, env, args = self.env.loaded.config, self.env, self._arguments
        if config.sampling.type is not None:
            raise ConfigError(
                f"sampling.type={config.sampling.type!r} is invalid: links are kept out of their "
                "own messages by raygnn's sampler only. Remove it."
            )
        if config.sampling.temporal is not None:
            raise ConfigError(
                "sampling.temporal is invalid: this task scores all links of an anchor from one "
                "embedding, which is of one time. Remove it, and split the links by time."
            )
        settings, training = config.loader_plan(split), split == "train"
        graph = self.messages(split)
        return LinkLoader(
            graph,
            self._features,
            supervision,
            sampler=build_sampler(env.loaded, graph),
            columns={args.feature: "x"} if feature_widths(env.bundle, args.feature) else {},
            num_negatives=args.num_random_negatives if training else args.num_random_negatives_eval,
            negatives=args.negatives,
            fixed_negatives=not training,
            max_labels_per_anchor=args.max_labels_per_anchor if training else None,
            reverse_types=self.target.reverse_types,
            batch_size=settings.batch_size,
            split=split,
            seed=config.seed,
            shuffle=training,
            rank=env.rank,
            world_size=env.world_size,
            num_threads=settings.num_threads,
            prefetch_batches=settings.prefetch_batches,
            pin_memory=env.device.type == "cuda",
        )

    def _loss(self, batch: Any, rows: Mapping[str, Tensor], scores: LinkScores) -> StepOutput:
        inputs = {"scores": scores, "model": self.predictor(), "batch": batch}
        if any(name.endswith("embeddings") for name in self.objective.needs):
            ends = _ends_of_links(batch, rows, self.node_types)
            inputs |= {"anchor_embeddings": ends[0], "target_embeddings": ends[1]}
            inputs["embeddings"] = torch.cat(ends)
        return self.objective(len(scores.positive), **inputs)

    def _score(
        self, batch: Any, rows: Mapping[str, Tensor], *, fixed_candidates: bool
    ) -> LinkScores:
        """Scores of the batch's links and of what they compete with."""
        anchor_rows, target_rows = (rows[node_type] for node_type in self.node_types)
        decoder = self.predictor().decoder
        positive = decoder.score_pairs(*_ends_of_links(batch, rows, self.node_types))
        candidates = self._candidates(batch, target_rows, fixed_candidates)
        every = decoder.score_all(anchor_rows[batch.anchor_index], candidates.rows)
        order = batch.input_id.argsort()
        row_of = order[torch.searchsorted(batch.input_id[order], batch.label_id[0].contiguous())]
        return score_links(
            positive,
            every,
            row_of,
            batch.input_id,
            batch.label_id[1],
            candidates,
            self._known(batch.input_id, candidates.ids),
        )

    def _candidates(self, batch: Any, target_rows: Tensor, fixed: bool) -> Candidates:
        """Random negatives; in training hard ones, and in-batch targets where the loss asks."""
        places, ids = [batch.random_negatives], [batch.random_negative_id]
        owners = [torch.full_like(batch.random_negatives, -1)]
        if not fixed:
            places.append(batch.negative_index[1])
            ids.append(batch.negative_id[1])
            owners.append(batch.negative_id[0])
            if self.objective.in_batch:
                places.append(batch.label_index[1])
                ids.append(batch.label_id[1])
                owners.append(torch.full_like(batch.label_index[1], -1))
        return Candidates(
            rows=target_rows[torch.cat(places)], ids=torch.cat(ids), owner=torch.cat(owners)
        )

    def _known(self, anchor_ids: Tensor, candidate_ids: Tensor) -> Tensor | None:
        if not self._arguments.remove_accidental_hits:
            return None
        found = self.target.known.mask(anchor_ids.cpu().numpy(), candidate_ids.cpu().numpy())
        known = torch.from_numpy(found).to(self.env.device)
        if self.node_types[0] == self.node_types[1]:
            known |= anchor_ids.unsqueeze(1) == candidate_ids  # nobody is asked to link to itself
        return known


def _ends_of_links(
    batch: Any, rows: Mapping[str, Tensor], node_types: tuple[str, str]
) -> tuple[Tensor, Tensor]:
    """[num_links, channels] of the anchors and of the targets."""
    anchors, targets = batch.label_index
    return rows[node_types[0]][anchors], rows[node_types[1]][targets]


def _link_numbers(label_id: Tensor, num_targets: int) -> Tensor:
    """int64 [num_links], a number for each (anchor, target), to order gathered rows by."""
    return label_id[0] * num_targets + label_id[1]
