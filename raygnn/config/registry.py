"""The registry of components: base classes, short names and injected arguments of each slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Slot:
    """A place in the config that takes a component.

    Attributes:
        path: its path in the config.
        bases: dotted classes, one of which the component must derive from.
        names: dotted path of each short name.
        injected: arguments that raygnn sets and the config may not.
        takes_functions: also accepts a function of an allowed user module.
        functions_only: accepts only such a function.
        any_user_class: `bases` restrict only classes of libraries.
        nests: objects in its args are of its own kind, with its short names and injected arguments,
            such as the schedulers of a `SequentialLR`.
    """

    path: str
    bases: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    injected: frozenset[str] = frozenset()
    takes_functions: bool = False
    functions_only: bool = False
    any_user_class: bool = False
    nests: bool = False


#: Module of the graphs that `data.synthetic` names. The core imports it by this name only.
GENERATORS = "raygnn.prepare.synthetic"
_MODELS = (
    *("GCN", "GraphSAGE", "GAT", "GATv2", "GIN", "GINE", "Transformer", "MLP"),
    # of several node types
    *("HGT", "RGCN", "SimpleHGN", "Hetero", "LightGCN", "Embedding", "EASE"),
)
#: One line registers a task: its folder in `raygnn/loops/tasks`, and the classes in its `task.py`
#: and `target.py`.
_TASKS = {
    "node_classification": ("NodeClassification", "NodeTarget"),
    "link_prediction": ("LinkPrediction", "LinkTarget"),
    "edge_prediction": ("EdgePrediction", "EdgeTarget"),
    "self_supervised": ("SelfSupervised", "SelfSupervisedTarget"),
    "several_tasks": ("SeveralTasks", "SeveralTarget"),
}
#: By short name of a task, the dotted path of its target; see `raygnn.loops.tasks.target`.
TASK_TARGETS: Mapping[str, str] = MappingProxyType(
    {name: f"raygnn.loops.tasks.{name}.target.{target}" for name, (_, target) in _TASKS.items()}
)
#: Names of torch.optim, without LBFGS (needs a closure) and Muon (matrices only).
_OPTIMIZERS = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD", "SparseAdam"),
)
#: Names of torch.optim.lr_scheduler, without schedulers whose arguments are functions.
_SCHEDULERS = (
    *("ConstantLR", "ChainedScheduler", "CosineAnnealingLR", "CosineAnnealingWarmRestarts"),
    *("CyclicLR", "ExponentialLR", "LinearLR", "MultiStepLR", "OneCycleLR", "PolynomialLR"),
    *("ReduceLROnPlateau", "SequentialLR", "StepLR"),
)
_LOSSES = {
    "cross_entropy": "CrossEntropy",
    "binary_cross_entropy": "BinaryCrossEntropy",
    "mse": "MeanSquaredError",
    "mae": "MeanAbsoluteError",
    "huber": "Huber",
    "retrieval": "Retrieval",
    "softmax": "SoftmaxOwnNegatives",
    "margin": "Margin",
    "bpr": "BPR",
    "link_binary_cross_entropy": "LinkBinaryCrossEntropy",
    "direct_au": "DirectAU",
    "embedding_l2": "EmbeddingL2",
    "n3": "N3",
    "weight_l1": "WeightL1",
}
_METRICS = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "BalancedAccuracy",
    "f1_macro": "F1Macro",
    "f1_micro": "F1Micro",
    "auroc": "AUROC",
    "average_precision": "AveragePrecision",
    "mae": "MeanAbsoluteError",
    "nmae": "NormalizedMeanAbsoluteError",
    "rmse": "RootMeanSquaredError",
    "r2": "R2",
    "mrr": "MeanReciprocalRank",
    "hits": "Hits",
    "auc": "LinkAUC",
    "ap": "LinkAveragePrecision",
}
_DECODERS = {
    "inner_product": "InnerProduct",
    "hadamard_mlp": "HadamardMLP",
    "distmult": "DistMult",
    "complex": "ComplEx",
}
_SELF_SUPERVISED = "raygnn.loops.tasks.self_supervised"
_METHODS = {
    "barlow_twins": "two_views.BarlowTwins",
    "cca_ssg": "two_views.CCASSG",
    "bgrl": "two_views.BGRL",
    "grace": "two_views.GRACE",
    "graphmae": "reconstruction.GraphMAE",
}
_LOGGERS = {
    "tensorboard": "TensorBoard",
    "wandb": "WandB",
    "mlflow": "MLflow",
}

SLOTS: Mapping[str, Slot] = MappingProxyType(
    {
        "model": Slot(
            "model",
            ("torch.nn.Module",),
            {name: f"raygnn.models.{name}" for name in _MODELS},
            frozenset({"in_channels", "edge_types", "num_nodes"}),
        ),
        "task": Slot(
            "task",
            ("raygnn.loops.task.Task",),
            {name: f"raygnn.loops.tasks.{name}.task.{task}" for name, (task, _) in _TASKS.items()},
        ),
        "optimizer": Slot(
            "optimizer",
            ("torch.optim.Optimizer",),
            {name: f"torch.optim.{name}" for name in _OPTIMIZERS},
            frozenset({"params"}),
        ),
        "lr_scheduler": Slot(
            "lr_scheduler",
            ("torch.optim.lr_scheduler.LRScheduler",),
            {name: f"torch.optim.lr_scheduler.{name}" for name in _SCHEDULERS},
            frozenset({"optimizer", "last_epoch"}),
            nests=True,
        ),
        "loss": Slot(
            "losses",
            ("torch.nn.Module",),
            {name: f"raygnn.losses.{loss}" for name, loss in _LOSSES.items()},
            frozenset({"label_counts", "class_names"}),
            takes_functions=True,
        ),
        "metric": Slot(
            "metrics",
            ("raygnn.metrics.Metric", "torchmetrics.Metric"),
            {name: f"raygnn.metrics.{metric}" for name, metric in _METRICS.items()},
            frozenset({"num_outputs", "problem"}),
        ),
        "decoder": Slot(
            "task.args.decoder",
            ("raygnn.models.decoders.Decoder",),
            {name: f"raygnn.models.decoders.{decoder}" for name, decoder in _DECODERS.items()},
            frozenset({"in_channels"}),
        ),
        "method": Slot(
            "task.args.method",
            (f"{_SELF_SUPERVISED}.methods.Method",),
            {name: f"{_SELF_SUPERVISED}.{method}" for name, method in _METHODS.items()},
            frozenset({"setting"}),
        ),
        "callback": Slot("callbacks", ("raygnn.loops.callbacks.Callback",)),
        "hook": Slot("callbacks", takes_functions=True, functions_only=True),
        "loop": Slot("loop", takes_functions=True, functions_only=True),
        "grad_weight": Slot("training.grad_reduction", takes_functions=True, functions_only=True),
        "init_env": Slot("init_env", takes_functions=True, functions_only=True),
        "logger": Slot(
            "loggers",
            ("raygnn.outputs.loggers.MetricLogger",),
            {name: f"raygnn.outputs.loggers.{logger}Logger" for name, logger in _LOGGERS.items()},
            frozenset({"logs_uri", "run_name"}),
        ),
        "dataset": Slot(
            "data",
            tuple(f"torch_geometric.data.{base}" for base in ("Dataset", "Data", "HeteroData")),
            takes_functions=True,
            any_user_class=True,
        ),
    }
)

#: Base classes of library objects that `__type` inside of args may build.
NESTED = Slot(
    "args",
    ("torch.nn.Module", "torch_geometric.transforms.BaseTransform", "torchmetrics.Metric"),
    takes_functions=True,
    any_user_class=True,
)
