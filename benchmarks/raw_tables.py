"""Raw tables to a model with every default, beside scikit-learn and the best that there is.

    python benchmarks/raw_tables.py

Draws the tables of an insurance company, as exports have them: brokers, customers, policies and
claims with gaps, dates, lists and columns of hundreds of values. 5 % of the claims are fraud. That
depends on a claim's own columns and on whether its broker cheats, which no column says, but the
other claims of the broker do: theirs have more often the tag `rush` and the channel `phone`.

All figures are average precision on the same test claims. `rule` rows know the formula that labels
were drawn by. The peers are fitted to the claims joined with all other tables, and, where a person
helps, with what that person would compute of each broker's claims.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml
from harness import markdown
from real_graphs import mean_and_spread
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import raygnn.train

_CLAIMS = {"smoke": 2_000, "reference": 40_000}
_CHEATS, _WEIGHT, _FRAUD = 0.15, 2.8, 0.05
_RUSH, _PHONE = (0.2, 0.5), (0.3, 0.5)  # of honest brokers, and of those who cheat
_DAY = np.datetime64("2021-01-01")
#: Keys and references, by table: of a reference the name of the relation and the other table.
_KEYS: dict[str, dict[str, tuple[str, str] | None]] = {
    "brokers": {"code": None},
    "customers": {"customer_no": None},
    "policies": {
        "policy_no": None,
        "holder": ("held_by", "customers"),
        "sold_by": ("sold_by", "brokers"),
    },
    "claims": {
        "claim_no": None,
        "policy": ("on", "policies"),
        "handled_by": ("handled_by", "brokers"),
    },
}


@dataclass(frozen=True)
class Company:
    """The tables, and what nobody is told.

    Attributes:
        tables: by name, with keys and references.
        broker, policy, holder: rows of those that a claim leads to, [num_claims].
        fraud, known, fold: of claims: the label, whether the table has it, and its split.
        own, evidence: of claims: what their own columns add to the logit, and the log-likelihood
            ratio of their tag and channel between brokers who cheat and others.
        offset: of the logit.
        cheats: of brokers.
    """

    tables: Mapping[str, pa.Table]
    broker: np.ndarray
    policy: np.ndarray
    holder: np.ndarray
    fraud: np.ndarray
    known: np.ndarray
    fold: np.ndarray
    own: np.ndarray
    evidence: np.ndarray
    offset: float
    cheats: np.ndarray

    @classmethod
    def drawn(cls, num_claims: int) -> Company:
        """The same company for a number of claims, always."""
        rng = np.random.default_rng(7)
        num_customers, num_policies = num_claims // 2, num_claims * 13 // 20
        num_brokers = max(20, num_claims // 133)
        cheats = rng.random(num_brokers) < _CHEATS
        codes = np.array([f"BR-{i:05d}" for i in rng.choice(90_000, num_brokers, replace=False)])
        customer_no = np.sort(rng.choice(3_000_000, num_customers, replace=False))
        holder = rng.integers(0, num_customers, num_policies)
        popular = 1 / (1 + rng.permutation(num_brokers)) ** 0.6
        seller = rng.choice(num_brokers, num_policies, p=popular / popular.sum())
        product = rng.choice(
            ["motor", "home", "life", "travel"], num_policies, p=[0.5, 0.2, 0.1, 0.2]
        )
        model, is_motor = _zipf(rng, 700, num_policies), product == "motor"
        policy = rng.integers(0, num_policies, num_claims)
        broker = np.where(
            rng.random(num_claims) < 0.95, seller[policy], rng.integers(0, num_brokers, num_claims)
        )
        day = _DAY + rng.integers(0, 1095, num_claims)
        z, cash = rng.normal(size=num_claims), rng.random(num_claims) < 0.15
        rush, phone = (
            rng.random(num_claims) < np.array(shares)[cheats[broker].astype(int)]
            for shares in (_RUSH, _PHONE)
        )
        effect = np.where(is_motor, rng.normal(0, 0.7, 700)[model], 0)[policy]
        own = 0.8 * z + 1.3 * _is_weekend(day) + 0.8 * cash + effect
        offset = _offset(own + _WEIGHT * cheats[broker])
        fraud = rng.random(num_claims) < _sigmoid(own + _WEIGHT * cheats[broker] + offset)
        known = rng.random(num_claims) < 0.85
        fold = rng.choice(["train", "val", "test"], num_claims, p=[0.7, 0.1, 0.2])
        tables = {
            "brokers": {
                "code": codes,
                "office_zip": _numbered(rng.integers(0, num_brokers // 5, num_brokers), "Z"),
                "licensed": rng.choice(["Y", "N"], num_brokers, p=[0.9, 0.1]),
                "since": [
                    f"{d}.{m}.{y}"
                    for d, m, y in rng.integers([1, 1, 1990], [29, 13, 2020], (num_brokers, 3))
                ],
            },
            "customers": {
                "customer_no": customer_no,
                "birth_year": _gaps(rng, rng.integers(1930, 2004, num_customers), 0.12),
                "zip": _numbered(rng.integers(0, num_customers // 6, num_customers), "Z"),
                "occupation": _numbered(_zipf(rng, 900, num_customers), "job "),
                "yearly_income": _gaps(rng, np.exp(rng.normal(10.3, 0.9, num_customers)), 0.25),
                "member_since": (_DAY - rng.integers(0, 3650, num_customers)).astype(str),
            },
            "policies": {
                "policy_no": _numbered(rng.choice(9_000_000, num_policies, replace=False), "P"),
                "holder": customer_no[holder],
                "sold_by": codes[seller],
                "product": product,
                "car_model": pa.array(_numbered(model, "Model-"), mask=~is_motor),
                "start_date": (_DAY - rng.integers(0, 1500, num_policies)).astype(str),
                "annual_premium": np.exp(rng.normal(6.2, 0.6, num_policies)),
            },
        }
        other = rng.choice(["web", "app", "letter"], num_claims)
        tables["claims"] = {
            "claim_no": 700_000_000 + rng.permutation(num_claims),
            "policy": tables["policies"]["policy_no"][policy],
            "handled_by": codes[broker],
            "reported_on": day.astype(str),
            "amount_claimed": np.exp(7 + 1.5 * z),
            "channel": np.where(phone, "phone", other),
            "tags": [
                ["rush"] * r + ["cash"] * c
                for r, c in zip(rush.tolist(), cash.tolist(), strict=True)
            ],
            "injured": _gaps(rng, rng.poisson(0.2, num_claims), 0.2),
            "police": rng.choice(["Y", "N"], num_claims),
            "fraud": pa.array(np.where(fraud, "Y", "N"), mask=~known),
            "fold": fold,
        }
        evidence = sum(
            np.log(np.where(seen, cheat / honest, (1 - cheat) / (1 - honest)))
            for seen, (honest, cheat) in ((rush, _RUSH), (phone, _PHONE))
        )
        made = {name: pa.table(columns) for name, columns in tables.items()}
        return cls(
            made, broker, policy, holder[policy], fraud, known, fold, own, evidence, offset, cheats
        )

    def write(self, folder: Path) -> None:
        """The tables as files, and a `graph.yaml` with `transform: auto` for each column."""
        folder.mkdir(parents=True, exist_ok=True)
        nodes, edges = {}, []
        for name, table in self.tables.items():
            file = f"{name}.csv" if name == "brokers" else f"{name}.parquet"
            write = pa.csv.write_csv if name == "brokers" else pq.write_table
            write(table, folder / file)
            keys = _KEYS[name]
            own = next(iter(keys))
            columns = [c for c in table.column_names if c not in {*keys, "fraud", "fold"}]
            features = {"x": [{"column": c, "transform": "auto"} for c in columns]}
            nodes[name] = {"files": file, "id": own, "features": features}
            for column, reference in keys.items():
                if reference is not None:
                    ends = {"source": own, "target": column}
                    edges.append({"type": [name, *reference], "files": file, **ends})
        nodes["claims"] |= {"labels": {"fraud": "fraud"}, "split": "fold"}
        graph = {"format": "raygnn/graph-v1", "node_types": nodes, "edge_types": edges}
        (folder / "graph.yaml").write_text(yaml.safe_dump(graph, sort_keys=False))

    @property
    def is_test(self) -> np.ndarray:
        """Of claims."""
        return self.known & (self.fold == "test")

    def precision(self, scores: np.ndarray) -> float:
        """Average precision on the test claims."""
        return float(average_precision_score(self.fraud[self.is_test], scores[self.is_test]))

    def rule(self, num_others: int | None) -> float:
        """Of the formula, which knows as much of a broker as a number of its other claims say."""
        rng, log_odds = np.random.default_rng(0), np.log(_CHEATS / (1 - _CHEATS))
        if num_others is None:
            seen = np.bincount(self.broker, self.evidence)[self.broker]
        else:
            of_broker = [np.flatnonzero(self.broker == b) for b in range(len(self.cheats))]
            seen = self.evidence.copy()
            for i, b in enumerate(self.broker):
                others = of_broker[b][of_broker[b] != i]
                seen[i] += self.evidence[rng.permutation(others)[:num_others]].sum()
        cheats = _sigmoid(log_odds + seen)
        honest, cheating = (_sigmoid(self.own + w + self.offset) for w in (0, _WEIGHT))
        return self.precision((1 - cheats) * honest + cheats * cheating)


def peers(company: Company) -> dict[str, float]:
    """Average precision of scikit-learn's models."""
    joined = {}
    for name, rows in (
        ("claims", slice(None)),
        ("policies", company.policy),
        ("customers", company.holder),
        ("brokers", company.broker),
    ):
        table = company.tables[name]
        joined |= {
            column: table.column(column).to_pandas().to_numpy()[rows]
            for column in table.column_names
        }
    days = joined["reported_on"].astype("datetime64[D]")
    rush = np.array(["rush" in tags for tags in joined["tags"]], float)
    cash = np.array(["cash" in tags for tags in joined["tags"]], float)
    phone = joined["channel"] == "phone"
    names = ("amount_claimed", "injured", "annual_premium", "birth_year", "yearly_income")
    numbers = [*(joined[name].astype(float) for name in names), days.astype(float), rush, cash]
    texts = [
        joined[name].astype(str)
        for name in ("channel", "police", "product", "car_model", "occupation", "licensed")
    ]
    codes = [np.unique(text, return_inverse=True)[1] for text in texts]
    size = np.bincount(company.broker)
    of_broker = [(np.bincount(company.broker, v) / size)[company.broker] for v in (rush, phone)]
    helped = [np.log(joined["amount_claimed"]), _is_weekend(days).astype(float), *of_broker]
    found = {}
    for what, columns in (
        ("", numbers),
        (", a person's columns of each broker", [*numbers, *helped]),
    ):
        x = np.column_stack(columns)
        both = np.column_stack([x.astype(object), *texts])
        width = x.shape[1]
        encode = make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), slice(0, width)),
            (
                OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5),
                slice(width, None),
            ),
        )
        linear = make_pipeline(encode, LogisticRegression(max_iter=500, C=0.1))
        boosting = HistGradientBoostingClassifier(
            max_iter=150, learning_rate=0.05, early_stopping=True, random_state=0
        )
        found[f"logistic regression{what}"] = _fitted(company, linear, both)
        found[f"gradient boosting{what}"] = _fitted(company, boosting, np.column_stack([x, *codes]))
    return found


def _fitted(company: Company, model: object, x: np.ndarray) -> float:
    rows = company.known & (company.fold == "train")
    model.fit(x[rows], company.fraud[rows])  # type: ignore[attr-defined]
    return company.precision(model.predict_proba(x)[:, 1])  # type: ignore[attr-defined]


OURS = {
    "raygnn, columns of the claim alone (MLP)": ("--model.args.conv", "MLP"),
    "raygnn, every default": (),
    "raygnn, training.eval: exact": ("--training.eval", "exact"),
    "raygnn, exact, a learning rate of 0.002": (
        *("--training.eval", "exact"),
        *("--optimizer.args.lr", "0.002"),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0."""
    options = argparse.ArgumentParser(prog="python benchmarks/raw_tables.py", description=__doc__)
    options.add_argument("--work", default="build/raw_tables", metavar="DIR")
    options.add_argument("--scale", default="reference", choices=_CLAIMS)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="S")
    options.add_argument("--json", metavar="FILE", help="write the figures of each seed here too")
    args = options.parse_args(argv)
    work = Path(args.work)
    company = Company.drawn(_CLAIMS[args.scale])
    company.write(work / "tables")
    config = work / "config.yaml"
    config.write_text("task: {type: node_classification, args: {target: claims}}\nmodel: Hetero\n")
    found = {what: [value] for what, value in peers(company).items()}
    for what, overrides in OURS.items():
        found[what] = [_trained(config, work, seed, overrides) for seed in args.seeds]
    found["rule, 10 other claims of the broker"] = [company.rule(10)]
    found["rule, all claims of the broker"] = [company.rule(None)]
    print(
        markdown(
            [("", "average precision"), *((k, mean_and_spread(v, 3)) for k, v in found.items())]
        )
    )
    if args.json is not None:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _trained(config: Path, work: Path, seed: int, overrides: Sequence[str]) -> float:
    settings = (
        *("--data.uri", str(work / "tables"), "--scaling.num_workers", "0", "--seed", str(seed)),
        *("--run.storage_path", str(work / "runs"), "--run.name", "run", "--run.overwrite", "true"),
    )
    metrics = raygnn.train.fit(config, [*settings, *overrides]).metrics
    return float(metrics["test/average_precision"])


def _zipf(rng: np.random.Generator, num_values: int, size: int) -> np.ndarray:
    weights = 1 / np.arange(1, num_values + 1)
    return rng.choice(num_values, size, p=weights / weights.sum())


def _numbered(numbers: np.ndarray, start: str) -> np.ndarray:
    return np.array([f"{start}{number}" for number in numbers.tolist()])


def _gaps(rng: np.random.Generator, values: np.ndarray, share: float) -> pa.Array:
    return pa.array(values, mask=rng.random(len(values)) < share)


def _is_weekend(days: np.ndarray) -> np.ndarray:
    return (days.astype("datetime64[D]").astype(np.int64) + 3) % 7 >= 5


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _offset(logits: np.ndarray) -> float:
    """What makes the mean probability the share of fraud, by bisection."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(logits + middle).mean() < _FRAUD else (low, middle)
    return low


if __name__ == "__main__":
    sys.exit(main())
