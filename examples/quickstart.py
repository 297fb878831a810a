"""Trains the quickstart's GNN on two workers, and an MLP on the same features beside it."""

from pathlib import Path

import raygnn.train

CONFIG = Path(__file__).parent / "quickstart.yaml"


def main() -> None:
    gnn = raygnn.train.fit(CONFIG, ["--run.name", "quickstart", "--run.overwrite", "true"])
    baseline = ["--model.type", "MLP", "--scaling.num_workers", "0"]
    baseline += ["--run.name", "quickstart-mlp", "--run.overwrite", "true"]
    mlp = raygnn.train.fit(CONFIG, baseline)
    print(f"\ntest accuracy: GraphSAGE {gnn.metrics['test/accuracy']:.3f}")
    print(f"               MLP       {mlp.metrics['test/accuracy']:.3f}  (same features, no edges)")
    print(f"report, model and logs: {gnn.path}")


if __name__ == "__main__":
    main()
