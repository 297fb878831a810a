"""Anchor-based link prediction: embeddings in which linked nodes score high."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.config import LoadedConfig, build, resolve
from raygnn.data.edge_types import REVERSE_PREFIX, EdgeType, edge_type_name
from raygnn.data.links.split import LinkSplit
from raygnn.data.links.supervision import SupervisionEdges
from raygnn.device_memory import copied
from raygnn.errors import ConfigError
from raygnn.loops.baselines import Baselines
from raygnn.loops.early_stopping import LEAST_GAIN, Watched
from raygnn.loops.split_rows import SplitRows
from raygnn.loops.task import EvalOutput, StepOutput, TaskEnvironment
from raygnn.loops.tasks.encoder_task import EncoderTask
from raygnn.loops.tasks.exact_encoding import check_exact, target_attributes
from raygnn.loops.tasks.link_prediction.baselines import LinkBaselines
from raygnn.loops.tasks.link_prediction.evaluation import (
    ENCODER_NDCG,
    FullRankingEvaluation,
    RowsAtTime,
    ranks_by_group,
)
from raygnn.loops.tasks.link_prediction.scoring import LinkScoring
from raygnn.loops.tasks.link_prediction.target import (
    MOST_RANKED,
    LinkOutput,
    LinkTarget,
    LinkTargetArguments,
    find_dated_links,
    most_candidates,
    ranks_all_by_default,
)
from raygnn.loops.tasks.link_rules import forward_types, revealing_paths, with_reverses
from raygnn.loops.tasks.objective import Objective
from raygnn.losses import Candidates, LinkLoss, LinkScores
from raygnn.losses.seed_losses import in_full_precision
from raygnn.metrics.diagnostics import Diagnostic
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.graph_inputs import is_encoder, keeps_links, reads_messages
from raygnn.models.predictors import LinkPredictor
from raygnn.parallel.collectives import broadcast
from raygnn.recommender.choice import JudgedRows
from raygnn.recommender.known_links import LinkHistory
from raygnn.recommender.recommender import LinearRecommender
from raygnn.recommender.regression import AnchorRows, LinkBasis
from raygnn.sampling.batch import LinkBatch
from raygnn.sampling.link_loader import LinkLoader, LinkPlan

#: Inputs that loss terms may request: scores of the links; embeddings [num_links, channels] of
#: anchors, of targets, and both concatenated; the module; the batch.
LINK_INPUTS = ("scores", "anchor_embeddings", "target_embeddings", "embeddings", "model", "batch")


class LinkObjective(Objective):
    """Weighted sum of the terms under `losses`. Link losses give each link weight 1."""

    def __init__(
        self, loaded: LoadedConfig, device: torch.device, default: str = "retrieval"
    ) -> None:
        super().__init__(loaded, default, LINK_INPUTS, device)
        if len({loss.candidates for loss in self._of_links}) > 1:
            raise ConfigError(
                "losses.args.candidates='global' is invalid: other link losses compare within "
                "micro-batches. Set it to rank, or remove these. [loss-candidates-mixed]"
            )

    @property
    def is_joint(self) -> bool:
        """Whether links compete with candidates of all micro-batches of a step."""
        return any(loss.candidates == "global" for loss in self._of_links)

    @property
    def reads_log_q(self) -> bool:
        """Whether a term corrects for how candidates are drawn."""
        return any(loss.reads_log_q for loss in self._of_links)

    @property
    def in_batch(self) -> bool:
        """Whether a term uses other anchors' targets as candidates."""
        return any(loss.in_batch for loss in self._of_links)

    @property
    def by_query(self) -> bool:
        """Whether all terms with scores accept scores by query."""
        taking = [term.loss for term in self._terms if "scores" in term.needs]
        return all(isinstance(loss, LinkLoss) and loss.by_query for loss in taking)

    @property
    def _of_links(self) -> list[LinkLoss]:
        return [loss for loss in self.losses if isinstance(loss, LinkLoss)]


#: The k of the full ranking where the config is silent.
_DEFAULT_K = 20
#: Share of the nodes of a training batch that are cold, if links are split by time.
_COLD_SHARE_IN_TIME = 0.1


class LinkPrediction(EncoderTask[LinkBatch]):
    """Learns to score the links of one edge type above other pairs.

    A batch has links, declared hard negatives of their anchors, and random negatives, in one
    sampled subgraph: each node is encoded once. Message edges that repeat the links of the batch
    are excluded, unless the model's class sets `keeps_links`; edges of validation and test carry no
    messages in training. `data.splits` splits the links (hash on the unordered pair, or temporal);
    otherwise the edges' split column does.

    Args:
        edge_type: `src__rel__dst` of the links, or several, as a list or a pattern with `*`,
            between the same two node types. Default: the only type. Each is a relation to decoders
            that distinguish relations; known links are those of the same relation.
        labels: links are the graph's label edges instead of its message edges.
        decoder: `{type, args}`: inner_product, hadamard_mlp; distmult or complex, which
            distinguish relations.
        num_random_negatives: per batch in training, drawn over all nodes of the target type; `all`
            uses each of them once (1-vs-all).
        num_random_negatives_eval: candidates of each link in evaluation: distinct nodes, the first
            of one fixed order that are not known links of the anchor.
        negatives: distribution of training negatives: `uniform`, or `degree` for degree^0.75.
            Evaluation negatives are uniform.
        seeds: `links`, or `anchors` with their links: the unit of `batch_size` and of the epoch in
            training.
        max_labels_per_anchor: links of an anchor in one epoch, drawn anew in each. Default: all.
        remove_accidental_hits: masks candidates that are known links of the anchor: those of the
            split and of the splits before it. Between nodes of one type a link is known
            in both directions.
        logq_correction: softmax losses divide exp(score) of a candidate by its expected number
            among the candidates, so that popular nodes are not penalized for being drawn more
            often. Default: true if the targets of other links are candidates.
        cold_share: share of nodes with features among a training batch's anchors, targets and
            negatives that receive no messages, so that the model learns to embed nodes without
            links (DropoutNet, Volkovs et al., NeurIPS 2017). Default: 0.1 if `data.splits` is
            temporal, because the future brings new nodes, else 0.
        disjoint_train_ratio: share of the training links used only for the loss.
        test_messages: `transductive` (training and validation edges) or `inductive` (training).
        full_ranking: also ranks all nodes of the target type for each anchor, without known links;
            a list sets the k of its hits, recall and NDCG. Default: [20] for links between two node
            types with at most 50,000 targets, if all nodes can be encoded layer by layer.
    """

    target_class = LinkTarget
    arguments: LinkTargetArguments
    target: LinkTarget
    model: LinkPredictor

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self._bases_of: tuple[tuple[Any, ...], list[LinkBasis]] | None = None
        self._filter: Tensor | None = None  # chosen settings of the recommender
        self._encoder_ndcg = math.nan  # at the last validation

    def setup(self, env: TaskEnvironment) -> None:
        super().setup(env)
        self.node_types = self.output.ends
        default = "softmax" if self.arguments.competes_with_all else "retrieval"
        self.objective = LinkObjective(env.loaded, env.device, default)
        self.step_metrics = (*self.step_metrics, *self.objective.step_metrics)
        self.joint_loss = self if self.objective.is_joint else None
        self._scoring = LinkScoring(self.node_types)

    @cached_property
    def _ranking(self) -> FullRankingEvaluation | None:
        setting, loaded = self.arguments.full_ranking, self.env.loaded
        num_targets = self.env.bundle.num_nodes(self.node_types[1])
        if self.target.by_time:
            is_in_memory = loaded.config.data.mode == "in_memory"
            if setting is None and is_in_memory and self.target.ranks_by_default(self.env.bundle):
                setting = [min(_DEFAULT_K, num_targets)]
        elif setting is None:
            model_class = resolve(loaded.config.model, "model", loaded.allow_modules)
            is_own = isinstance(model_class, type) and is_encoder(model_class)
            if ranks_all_by_default(loaded.config, self.node_types, num_targets, is_encoder=is_own):
                setting = [min(_DEFAULT_K, num_targets)]
        if not setting:
            return None
        ks = None if isinstance(setting, bool) else setting
        return FullRankingEvaluation(self.env.bundle, num_targets, ks)

    @property
    def watched(self) -> Watched:
        """NDCG of the full ranking if there is one, else the sampled MRR, else the loss.

        Beside a recommender, the encoder's own NDCG: training changes nothing else. An encoder that
        does not help changes its rankings by less than the least gain.
        """
        metrics, name = self.config.metrics, "mrr"
        if self._ranking is not None:
            ks = self._ranking.ks
            name = f"full_ndcg@{_DEFAULT_K if _DEFAULT_K in ks else ks[-1]}"
            name = ENCODER_NDCG if self._blends else name
        elif metrics and all(metric.type != "mrr" for metric in metrics):
            return super().watched
        return Watched(f"val/{name}", "max", LEAST_GAIN)

    @property
    def output(self) -> LinkOutput:
        assert isinstance(self.spec.output, LinkOutput)
        return self.spec.output

    def build_head(self, encoder: GraphEncoder) -> nn.Module:
        loaded, config = self.env.loaded, self.config
        asked = self.arguments.full_ranking
        if asked and config.sampling.temporal is None:
            setting = f"task.args.full_ranking={asked!r}"
            check_exact(encoder, config.model.type, setting, "Set it to false.")
        relations = {}
        if "num_relations" not in self.arguments.decoder.args:
            relations = {"num_relations": len(self.output.edge_types)}
        decoder = build(
            self.arguments.decoder,
            "decoder",
            loaded.allow_modules,
            in_channels=config.embedding_width,
            **relations,
        )
        factors = None
        if self.output.factors:
            by_time = self.output.by_time  # otherwise they would read links of all times
            is_ignored = by_time is not (config.sampling.temporal is not None)
            factors = LinearRecommender(is_ignored=is_ignored, by_time=by_time)
        return LinkPredictor(encoder, decoder, factors)

    def links(self) -> Sequence[LinkSplit]:
        return self.target.links

    @property
    def is_inductive(self) -> bool:
        return self.arguments.test_messages == "inductive"

    def metric_problem(self) -> tuple[int, str]:
        most = most_candidates(self.env.bundle, self.output)
        return 1 + min(self.arguments.num_random_negatives_eval, most), "link_prediction"

    @property
    def can_pad(self) -> bool:
        """Hard negatives, links of anchors, and known links among all nodes vary in number."""
        args, splits = self.arguments, self.target.splits
        has_hard = splits["train"].hard_negatives is not None
        varies = has_hard or args.seeds == "anchors" or args.competes_with_all
        return not (varies or self.objective.is_joint)

    def build_metrics(self) -> Sequence[Any]:
        built = super().build_metrics()
        return built if self._ranking is None else [*built, self._ranking]

    def diagnostics(self) -> Sequence[Diagnostic]:
        """Ranks by the target's number of known links, and for cold and warm ends."""
        train, judged = self.target.splits["train"], self._judged_links
        return ranks_by_group(self.metric_problem()[0], train, judged, self._history)

    @property
    def _judged_links(self) -> SupervisionEdges:
        splits = self.target.splits
        return splits["test"] if splits["test"].num_links else splits["val"]

    def baselines(
        self, split: str, num_batches: int | None, metrics: Sequence[Any]
    ) -> Baselines | None:
        loader = self.loader(split)
        if loader is None:
            return None
        return self._baselines.judge(loader, split, num_batches, metrics)

    def split_rows(self, split: str, num_batches: int | None) -> SplitRows | None:
        if num_batches is not None or self.loader(split) is None:
            return None
        links, bundle = self.target.splits[split], self.env.bundle
        rows = links.row_of(np.arange(links.num_links))
        columns = {
            "anchor": bundle.take_ids(links.anchor_type, links.anchors[rows]),
            "target": bundle.take_ids(links.target_type, np.asarray(links.targets)),
        }
        if links.relations is not None:
            columns["relation"] = links.relations[rows]
        if links.times is not None:
            columns["time"] = np.asarray(links.times)
        return SplitRows.of(columns)

    @cached_property
    def _baselines(self) -> LinkBaselines:
        return LinkBaselines(self.target, self.env.bundle, self._history)

    def warnings(self) -> list[str]:
        if not reads_messages(self.config):
            return []
        types = dict.fromkeys(self.node_types)
        silent = [text for node_type in types for text in self.silent_nodes(node_type)]
        return [*silent, *self._revealing()]

    def _revealing(self) -> Iterator[str]:
        judged, splits = self._judged_links, self.target.splits
        if self.config.sampling.temporal is not None or not judged.num_links:
            return
        linked = with_reverses(self.env.bundle, self.output.edge_types)
        unused = [t for t in self.env.bundle.edge_types if not self._carries_messages(t)]
        paths = revealing_paths(
            self.message_store("test" if judged is splits["test"] else "val"),
            {*linked, *unused},
            (self.node_types[0], np.repeat(judged.anchors, np.diff(judged.indptr))),
            (self.node_types[1], np.asarray(judged.targets, np.int64)),
        )
        edges = forward_types(self.env.bundle, [path[0] for path in paths if len(path) == 1])
        for path in [*((edge_type,) for edge_type in edges), *(p for p in paths if len(p) > 1)]:
            names = " and ".join(map(edge_type_name, path))
            is_opposite = (path[0][2], path[0][0]) == self.node_types and len(path) == 1
            verb, how = "contains", " in the opposite direction" if is_opposite else ""
            if len(path) > 1:
                verb, how = "connect the ends of", ""
            yield (
                f"{names} {verb} the links to predict{how}, so messages reveal them. Set "
                f"sampling.fanouts of {edge_type_name(path[0])} to 0 or, for a copy of these "
                f"links, declare reverse_of in graph.yaml or name the relation "
                f"{REVERSE_PREFIX}{self.output.edge_types[0][1]}"
            )

    def _carries_messages(self, edge_type: EdgeType) -> bool:
        fanouts = self.spec.fanouts if self.spec is not None else {}
        return any(fanouts.get(edge_type_name(edge_type), (1,)))

    def training_step(self, batch: LinkBatch) -> StepOutput:
        rows = self.encode(batch)
        if self.arguments.competes_with_all:
            scores = self._scoring.scores_among_all(self.model.decoder, batch, rows)
            by_query = self.objective.by_query
            return self._loss(batch, rows, scores if by_query else scores.by_positive())
        return self.loss_among(batch, rows, self.offer(batch, rows))

    def encode(self, batch: LinkBatch) -> dict[str, Tensor]:
        rows: dict[str, Tensor] = self.model(batch)
        return rows

    def offer(self, batch: LinkBatch, rows: Mapping[str, Tensor]) -> Candidates:
        """Candidates of a batch's links, which `candidates: global` shares within a step."""
        offered = self._scoring.offered(batch, rows, in_batch=self.objective.in_batch)
        return replace(offered, rows=in_full_precision(offered.rows))

    def loss_among(
        self, batch: LinkBatch, rows: Mapping[str, Tensor], offered: Candidates
    ) -> StepOutput:
        offered = replace(offered, rows=offered.rows.to(rows[self.node_types[1]].dtype))
        scores = self._scoring.scores(self.model.decoder, batch, rows, offered)
        return self._loss(batch, rows, scores)

    def prepare_evaluation(self, split: str) -> None:
        """Embeds the whole graph, or rows as of their times, if evaluation is exact or ranks all
        nodes.
        """
        decoder, recommender = self.model.decoder, self.model.factors
        if self.target.by_time and self._ranking is not None:
            at_times = self._rows_at_times(split)
            self._ranking.prepare(self.target, decoder, split, at_times, self._ndcg_of(split))
            return
        if self._evaluates_by_layers or self._ranking is not None:
            self._every = self._encode_graph(split)
        if recommender is not None and self._evaluates_by_layers:
            anchors, targets = (self._every[name] for name in self.node_types)
            if self._is_weighed(split):
                self._weigh(recommender, [(anchors.cpu(), targets.cpu())], split)
            if recommender.is_used:
                (rows,) = self._linear_rows(recommender, split)
                blended: tuple[Any, Tensor] = recommender.blend((anchors, targets), rows)
                self._every = dict(zip(self.node_types, blended, strict=True))
        if self._ranking is not None:
            self._ranking.prepare(self.target, decoder, split, self._every, self._ndcg_of(split))

    def _rows_at_times(self, split: str) -> list[RowsAtTime]:
        recommender, at_times = self.model.factors, self._encode_rows(split)
        encoder_alone = [RowsAtTime(positions, *encoded) for positions, encoded in at_times]
        if recommender is None:
            return encoder_alone
        if self._is_weighed(split):
            on_host = [(anchors.cpu(), targets.cpu()) for _, (anchors, targets) in at_times]
            self._weigh(recommender, on_host, split)
        if not recommender.is_used:
            return encoder_alone
        rows, bases = self._linear_rows(recommender, split), self._bases(recommender, split)
        return [
            RowsAtTime(positions, *recommender.blend(encoded, of_links), recommender.hidden(basis))
            for (positions, encoded), of_links, basis in zip(at_times, rows, bases, strict=True)
        ]

    def _linear_rows(
        self, recommender: LinearRecommender, split: str
    ) -> list[tuple[AnchorRows, Tensor]]:
        return [recommender.rows(b, self._attributes) for b in self._bases(recommender, split)]

    def _bases(self, recommender: LinearRecommender, split: str) -> list[LinkBasis]:
        """The decomposed links of a split, or those known at each time of rows. Kept once."""
        settings = recommender.settings
        key = split, *settings.of_basis
        if self._bases_of is None or self._bases_of[0] != key:
            self._bases_of = None  # frees memory
            anchors: Sequence[np.ndarray | None] = [None]
            if self.target.by_time:
                anchors = [self.target.splits[split].anchors[at] for at in self._rows_of(split)]
            pairs = zip(self._histories(split), anchors, strict=True)
            self._bases_of = key, [LinkBasis.of(known, settings, rows) for known, rows in pairs]
        return self._bases_of[1]

    def _histories(self, split: str) -> list[LinkHistory]:
        """The links that are known in a split, or at each time of its rows."""
        if not self.target.by_time:
            graph, edge_type = self.message_store(split), self.output.edge_types[0]
            return [LinkHistory.of_edges(graph, self.env.bundle, edge_type)]
        times = self.target.times(split)
        assert self._history is not None  # as for a linear recommender
        return [self._history.as_of(times[at[0]]) for at in self._rows_of(split)]

    @cached_property
    def _attributes(self) -> np.ndarray | None:
        target = self.node_types[1]
        num_targets = self.env.bundle.num_nodes(target)
        return target_attributes(self.features, self.spec, target, num_targets)

    def _ndcg_of(self, split: str) -> float | None:
        return self._encoder_ndcg if self._blends and self._is_weighed(split) else None

    @property
    def _blends(self) -> bool:
        """Whether the recommender ranks beside an encoder that learns."""
        is_in_time = self.config.sampling.temporal is not None
        return self.learns and self.output.factors and self.output.by_time is is_in_time

    @property
    def learns(self) -> bool:
        return self.config.model.type != "EASE"

    def _is_weighed(self, split: str) -> bool:
        """Whether validation chooses filter and weights: not that of a trained model."""
        return split == "val" and "train" in self._loaders

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        """Positions of links are on the host, which ranks them among all nodes and by group."""
        loader = self.loader(split)
        for output in self._evaluated(split, num_batches):
            position = torch.from_numpy(loader.positions(0, output.index))
            yield replace(output, ids=position, target=position)

    def _evaluated(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        rows, self._every = self._every, {}
        if not self._evaluates_by_layers:
            yield from super().evaluate(split, num_batches)
            return
        loader, device = self.loader(split), self.env.device
        for index in range(self.env.rank, num_batches, self.env.world_size):
            batch = loader.with_dense_ids(index)
            yield self._judge(batch.apply(lambda tensor: copied(tensor, device)), rows)

    def judge(self, batch: LinkBatch) -> EvalOutput:
        return self._judge(batch, self.model(batch))

    def score_weights(self) -> tuple[float, float] | None:
        factors = self.model.factors
        if not factors or not factors.is_used:
            return None
        encoder, closed_form = factors.weights.tolist()
        return encoder, closed_form

    def _judge(self, batch: LinkBatch, rows: Mapping[str, Tensor]) -> EvalOutput:
        scores = self._scoring.evaluation_scores(self.model.decoder, batch.links, rows)
        output = self._loss(batch, rows, scores)
        return EvalOutput(
            index=batch.index,
            ids=batch.links.position,
            loss_sum=output.loss_sum,
            weight=output.weight,
            prediction=scores.compared(),
            target=batch.links.position,
            metrics=output.metrics,
        )

    def _check_objective(self) -> None:
        has_hard = self.target.splits["train"].hard_negatives is not None
        if not (self.arguments.num_random_negatives or self.objective.in_batch or has_hard):
            raise ConfigError(
                "task.args.num_random_negatives=0 is invalid: no loss has candidates. Set 1 or "
                "more, or losses.type to retrieval. [task-no-negatives]"
            )
        if self.arguments.competes_with_all and self.objective.in_batch:
            raise ConfigError(
                "task.args.num_random_negatives='all' is invalid: a retrieval loss adds targets "
                "that are among all nodes. Set losses.type to softmax. [task-all-negatives]"
            )
        if self.arguments.logq_correction and not self.objective.reads_log_q:
            raise ConfigError(
                "task.args.logq_correction=True is invalid: no loss reads it. Set it to false, or "
                "losses.type to retrieval or softmax. [task-logq-unused]"
            )

    @property
    def _evaluates_by_layers(self) -> bool:
        has_factors = self.output.factors and self.config.sampling.temporal is None
        return self.config.evaluates_by_layers or has_factors

    def _weigh(
        self, recommender: LinearRecommender, encoded: Sequence[tuple[Tensor, Tensor]], split: str
    ) -> None:
        """Sets settings, which do not depend on the encoder, and weights. Collective.

        `encoded`: rows of the encoder for each of the judged rows.
        """
        if self._filter is None:
            recommender.choose(self._judged, self._histories(split))
            self._filter = broadcast(recommender.filter.clone())
        recommender.filter.copy_(self._filter)
        rows = self._linear_rows(recommender, split)
        of_encoder = torch.tensor(recommender.weigh(self._judged, encoded, rows))
        if not self.learns:
            recommender.weights.copy_(torch.tensor([0.0, 1.0]))
        # sums may differ in the last bit by node
        recommender.weights.copy_(broadcast(recommender.weights))
        self._encoder_ndcg = float(broadcast(of_encoder))

    @cached_property
    def _history(self) -> LinkHistory | None:
        """Links with times that rows of (anchor, time) know, of few targets in memory."""
        bundle, config = self.env.bundle, self.config
        is_small = bundle.num_nodes(self.node_types[1]) <= MOST_RANKED
        if not self.target.by_time or not is_small or config.data.mode != "in_memory":
            return None
        return find_dated_links(bundle, config, self.node_types)

    @cached_property
    def _judged(self) -> Sequence[JudgedRows]:
        links = self.target.splits["val"]
        if self.target.by_time:
            return JudgedRows.at_times(links, self._histories("val"), self._rows_of("val"))
        known = self.target.known(self.env.bundle, "val")
        num_targets = self.env.bundle.num_nodes(self.node_types[1])
        return [JudgedRows.of_anchors(links, known, num_targets)]

    def _rows_of(self, split: str) -> list[np.ndarray]:
        """Positions of the rows of each distinct time, ascending."""
        distinct, time_index = np.unique(self.target.times(split), return_inverse=True)
        return [np.flatnonzero(time_index == i) for i in range(len(distinct))]

    def _encode_graph(self, split: str) -> dict[str, Tensor]:
        encoder, graph = self.model.encoder, self.message_store(split)
        rows = self.encode_exactly(encoder, graph, self.node_types)
        return {name: rows[name].to(self.env.device) for name in self.node_types}

    def _encode_rows(self, split: str) -> list[tuple[np.ndarray, tuple[Tensor, Tensor]]]:
        """Positions of the rows of each time, embeddings of their anchors and of all targets."""
        (anchor_type, target_type), links = self.node_types, self.target.splits[split]
        rows_of = self._rows_of(split)
        every = np.arange(self.env.bundle.num_nodes(target_type))
        times = self.target.times(split)
        distinct = np.array([times[positions[0]] for positions in rows_of])
        anchors = self.encode_as_of(split, anchor_type, links.anchors, times)
        at_times = np.tile(every, len(distinct)), np.repeat(distinct, len(every))
        targets = self.encode_as_of(split, target_type, *at_times)
        return [
            (rows, (anchors[torch.from_numpy(rows).to(anchors.device)], of_targets))
            for rows, of_targets in zip(rows_of, targets.split(len(every)), strict=True)
        ]

    def build_loader(self, split: str) -> LinkLoader | None:
        supervision = self.target.splits[split]
        if supervision.num_links == 0:
            return None
        args, known = self.arguments, None
        if args.remove_accidental_hits:
            known = self.target.not_competing(self.env.bundle, split)
        plan = LinkPlan(
            num_negatives=args.num_random_negatives_eval,
            is_evaluation=True,
            known=known,
            reverse_types=self.target.reverse_types,
        )
        if split == "train":
            self._check_objective()
            is_all, objective = args.competes_with_all, self.objective
            of_losses = objective.in_batch and objective.reads_log_q
            if is_all and args.remove_accidental_hits and len(self.output.edge_types) > 1:
                known = self.target.known(self.env.bundle, "train")
            plan = replace(
                plan,
                known=known,
                all_targets=is_all,
                seeds=args.seeds,
                max_labels_per_anchor=args.max_labels_per_anchor,
                num_negatives=0 if is_all else int(args.num_random_negatives),
                negatives=args.negatives,
                is_evaluation=False,
                in_batch=self.objective.in_batch,
                is_joint=self.objective.is_joint,
                log_q=logq if (logq := args.logq_correction) is not None else of_losses,
                cold_share=_cold_share(args, self.env.loaded),
                exclude=not keeps_links(self.config, self.env.loaded.allow_modules),
            )
        return LinkLoader(supervision=supervision, plan=plan, **self.loader_options(split))

    def _loss(self, batch: LinkBatch, rows: Mapping[str, Tensor], scores: LinkScores) -> StepOutput:
        inputs = {"scores": scores, "model": self.model, "batch": batch}
        if any(name.endswith("embeddings") for name in self.objective.needs):
            anchors, targets = self._scoring.ends(batch.links, rows)
            inputs |= {"anchor_embeddings": anchors, "target_embeddings": targets}
            inputs["embeddings"] = torch.cat([anchors, targets])
        return self.objective(len(scores.positive), **inputs)


def _cold_share(args: LinkTargetArguments, loaded: LoadedConfig) -> float:
    if args.cold_share is not None:
        return args.cold_share
    rule = loaded.config.data.splits
    brings_new_nodes = rule is not None and rule.type == "temporal" and rule.per is None
    return _COLD_SHARE_IN_TIME if brings_new_nodes else 0.0
