"""Self-supervised learning: a method trains the encoder, a linear probe evaluates it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from raygnn.config import build, resolve
from raygnn.config.loader_section import with_fanouts
from raygnn.console import say
from raygnn.device_memory import copied, read_together
from raygnn.loops.baselines import Baselines
from raygnn.loops.callbacks import Callback
from raygnn.loops.task import EvalOutput, StepOutput, TaskEnvironment
from raygnn.loops.tasks.build_encoder import build_layer
from raygnn.loops.tasks.build_sampler import build_sampler
from raygnn.loops.tasks.encoder_task import EncoderTask
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.loops.tasks.label_task import LabelTask
from raygnn.loops.tasks.self_supervised.methods import Method, Setting
from raygnn.loops.tasks.self_supervised.probe import ProbeRows, fit_probe
from raygnn.loops.tasks.self_supervised.target import (
    EmbeddingOutput,
    SelfSupervisedArguments,
    SelfSupervisedTarget,
)
from raygnn.losses import Candidates
from raygnn.losses.seed_losses import in_full_precision
from raygnn.metrics import Described
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.parallel import collectives
from raygnn.parallel.agreement import made_by_rank_0, run_and_sync_errors
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.loader import NeighborLoader
from raygnn.sampling.rng import seed_order
from raygnn.sampling.whole_graph import WholeGraphLoader

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine


class SelfSupervisedModel(nn.Module):
    """The trained module. Inference uses its encoder."""

    def __init__(self, encoder: GraphEncoder, method: Method) -> None:
        super().__init__()
        self.encoder = encoder
        self.method = method

    def forward(self, batch: NodeBatch) -> Tensor:
        """[num_seeds, channels], embeddings of the seeds without views."""
        rows: Tensor = self.encoder(batch)[batch.node_type]
        return rows


# Nodes that a probe is fitted to, during training and after it.
_MAX_IN_TRAINING, _MAX_AT_END = 5_000, 100_000
_COLLAPSED = 0.01  # share of the spread of embeddings of all directions


class SelfSupervised(LabelTask[NodeBatch], Callback):
    """Learns embeddings of nodes without labels; a linear probe predicts a label from them.

    All nodes of the type are training seeds; only the probe uses labels and splits. At each
    validation, and after training, a logistic regression is fitted to the frozen embeddings of the
    training nodes, with its penalty chosen on the validation nodes. Metrics are those of the probe.

    Args:
        method: barlow_twins, cca_ssg, bgrl, grace or graphmae.
        target: node type to embed. Default: the only one, or the only one with labels.
        label: label column that the probe predicts. Default: the only one. Without labels or
            splits, there is no probe.
        problem: of the probe: multi_class, multi_label or regression. Default: by the labels.
        standardize_target: not read.
        clamp: not read.
        blend: not read.
    """

    target_class = SelfSupervisedTarget
    arguments: SelfSupervisedArguments
    target: SelfSupervisedTarget
    model: SelfSupervisedModel

    step_metrics = ("embedding_std",)

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        # nodes, ascending, their logits and labels, on the device
        self._scores: tuple[Tensor, ...] | None = None

    def setup(self, env: TaskEnvironment) -> None:
        EncoderTask.setup(self, env)

    def split_rows(self, split: str, num_batches: int | None) -> None:
        return None  # most of them need no labels

    @property
    def embedding(self) -> EmbeddingOutput:
        assert isinstance(self.spec.output, EmbeddingOutput)
        return self.spec.output

    @property
    def output(self) -> LabelOutput:
        assert self.embedding.probe is not None
        return self.embedding.probe

    @property
    def method(self) -> Method:
        return self.model.method

    def build_head(self, encoder: GraphEncoder) -> nn.Module:
        env, loaded, width = self.env, self.env.loaded, self.config.embedding_width
        node_type = self.embedding.node_type
        num_features = self.spec.widths.get(node_type, 0)
        if node_type in self.spec.embedded_types:
            num_features = 0
        if node_type in encoder.categories:
            num_features = encoder.categories[node_type].numbers.numel()
        setting = Setting(
            node_type,
            width,
            num_features,
            encoder,
            lambda out: build_layer(loaded, env.bundle, self.spec, width, out),
        )
        method: Method = build(
            self.arguments.method, "method", loaded.allow_modules, setting=setting
        )
        self.joint_loss = self if method.is_joint else None
        return SelfSupervisedModel(encoder, method)

    def build_loader(self, split: str) -> NeighborLoader | WholeGraphLoader | None:
        node_type = self.embedding.node_type
        every = np.arange(self.env.bundle.num_nodes(node_type))
        seeds = every if split == "train" else self.target.splits[split]
        if self.config.sampling.is_full or not len(seeds):
            return self.neighbor_loader(split, seeds, node_type)
        loaded, options = self.env.loaded, self.loader_options(split)
        method = resolve(self.arguments.method, "method", loaded.allow_modules)
        num_more: int = method.extra_hops  # type: ignore[attr-defined]
        deeper = with_fanouts(self.config, lambda hops: [*hops[:1] * num_more, *hops])
        options["sampler"] = build_sampler(replace(loaded, config=deeper), options["graph"])
        loader = NeighborLoader(seeds=seeds, node_type=node_type, **options)
        loader.prepare = lambda batch: self.method.draw(batch)
        return loader

    @property
    def can_pad(self) -> bool:
        """False: the number of edges of a view is random."""
        return False

    def encode(self, batch: NodeBatch) -> dict[str, Tensor]:
        return self.method.rows(self.model.encoder, batch)

    def offer(self, batch: NodeBatch, rows: dict[str, Tensor]) -> Candidates:
        return self.method.offer(batch, rows)

    def loss_among(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> StepOutput:
        loss_sum, weight = self.method.loss(batch, rows, offered)
        return StepOutput(loss_sum, weight, {"embedding_std": weight * spread(rows["embeddings"])})

    def training_step(self, batch: NodeBatch) -> StepOutput:
        return self.loss_among(batch, self.encode(batch), None)

    def prepare_evaluation(self, split: str) -> None:
        self._scores = None
        if self.embedding.probe is None or self.loader(split) is None:
            return
        splits, most = self.target.splits, _MAX_IN_TRAINING if split == "val" else _MAX_AT_END
        train, judged = splits.train, splits[split]
        if len(train) > most:
            chosen = seed_order(len(train), self.config.seed, 0, 0, most)
            train = np.sort(train[chosen])
        parts = [train, splits.val, judged]
        ids = np.unique(np.concatenate(parts))
        rows = self._embed(ids)
        of_train, of_val, of_judged = (
            ProbeRows(rows[torch.from_numpy(np.searchsorted(ids, part))], self.target.labels[part])
            for part in parts
        )
        val = of_val if len(splits.val) else None
        fit = partial(fit_probe, self.output.problem, self.output.num_outputs, of_train, val)
        probe = made_by_rank_0(fit, "fitting the probe")
        labels = torch.from_numpy(self.target.labels[judged])
        known = torch.from_numpy(judged), probe(of_judged.rows), labels
        self._scores = tuple(copied(part, self.env.device) for part in known)

    def evaluates_by_layers(self, split: str) -> bool:
        """Never: the loss needs views of batches. The probe embeds nodes itself."""
        return False

    def judge(self, batch: NodeBatch) -> EvalOutput:
        rows = self.encode(batch)
        offered = self.method.offer(batch, rows) if self.method.is_joint else None
        output = self.loss_among(batch, rows, offered)
        ids = batch.input_id
        labels = torch.zeros_like(ids)
        scores = labels.float().unsqueeze(1)
        if self._scores is not None:
            nodes, every, labels_of = self._scores
            places = torch.searchsorted(nodes, ids)
            scores, labels = every[places], labels_of[places]
        return EvalOutput(
            batch.index, ids, output.loss_sum, output.weight, scores, labels, output.metrics
        )

    def build_metrics(self) -> Sequence[Any]:
        return super().build_metrics() if self.embedding.probe is not None else ()

    def diagnostics(self) -> Sequence[Described]:
        return super().diagnostics() if self.embedding.probe is not None else ()

    def baselines(
        self, split: str, num_batches: int | None, metrics: Sequence[Any]
    ) -> Baselines | None:
        if self.embedding.probe is None:
            return None
        return super().baselines(split, num_batches, metrics)

    def warnings(self) -> list[str]:
        return self.silent_nodes(self.embedding.node_type)

    def on_train_start(self, engine: Engine) -> None:
        if engine.position.step == 0:
            self.method.on_start(self.model.encoder)

    def after_optimizer_step(self, engine: Engine) -> None:
        self.method.after_step(self.model.encoder, _progress(engine))

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        """Warns if all embeddings are nearly equal."""
        spreads = [value for name, value in metrics.items() if name.endswith("/embedding_std")]
        spread = spreads[-1] if spreads else 1.0  # of validation, which follows training
        if spread < _COLLAPSED and engine.context.rank == 0:
            say(
                f"warning: the embeddings have collapsed: embedding_std is {spread:.2g} of that of "
                "random directions. Lower optimizer.args.lr, or set another task.args.method."
            )

    def _embed(self, ids: np.ndarray) -> Tensor:
        """Embeddings of nodes, [num_ids, channels], on the CPU of every rank. Collective."""
        node_type = self.embedding.node_type
        if self.config.evaluates_by_layers:
            graph = self.message_store("val")
            every = self.encode_exactly(self.model.encoder, graph, [node_type])[node_type]
            return every.cpu()[torch.from_numpy(ids)].float()
        local, places = run_and_sync_errors(lambda: self._embed_own(ids), "embedding nodes")
        rows, order = collectives.gather_rows(local), collectives.gather_rows(places)
        return rows[order.argsort()]

    def _embed_own(self, ids: np.ndarray) -> tuple[Tensor, Tensor]:
        loader = self.neighbor_loader("val", ids, self.embedding.node_type)
        assert loader is not None
        rows = [torch.empty(0, self.config.embedding_width)]
        places = [torch.empty(0, dtype=torch.int64)]
        with loader, closing(loader.iterate(0)) as batches:
            for batch in batches:
                rows.append(self.model(batch.to(self.env.device)).float())
                places.append(torch.from_numpy(loader.places(0, batch.index)))
        return torch.cat(read_together(rows)), torch.cat(places)


def spread(embeddings: Tensor) -> Tensor:
    """Spread of normalized embeddings [num_seeds, channels]: 0 if all are equal, 1 if all
    directions are used equally.

    The mean standard deviation of their columns, times the root of the number of columns.

    Source: SimSiam, arXiv:2011.10566, section 4.1.
    """
    if len(embeddings) == 0:
        return embeddings.new_zeros(())
    rows = functional.normalize(in_full_precision(embeddings.detach()))
    return (rows.std(dim=0, correction=0).mean() * rows.shape[1] ** 0.5).double()


def _progress(engine: Engine) -> float:
    planned = engine.config.training.planned_steps(engine.steps_per_epoch)
    return 0.0 if planned is None else min(1.0, (engine.position.step + 1) / planned)
