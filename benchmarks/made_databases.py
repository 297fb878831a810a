"""Generated databases for comparisons: a ferry line and a library, drawn from hidden habits.

python benchmarks/made_databases.py ferry build/ferry
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

_START, _DAYS = pd.Timestamp("2021-01-01"), 1_000


def _dates(days: np.ndarray) -> np.ndarray:
    return np.asarray((_START + pd.to_timedelta(days, "D")).round("min"))


def ferry() -> dict[str, pd.DataFrame]:
    """Passengers book for themselves and a companion. Bad ships and complaints drive them away, and
    summers bring them back.
    """
    rng = np.random.default_rng(1)
    num, num_ships, num_sailings = 2_000, 12, 4_000
    bad = rng.random(num_ships) < 0.4
    sailed = np.sort(rng.uniform(0, _DAYS, num_sailings))
    ship = rng.integers(0, num_ships, num_sailings)
    rate, joined = rng.gamma(1.2, 0.012, num), rng.uniform(0, 600, num)
    friend, home = rng.integers(0, num, num), rng.integers(0, 9, num)
    bookings, complaints = [], []
    for person in range(num):
        day, mood = joined[person], 1.0
        while (day := day + rng.exponential(1 / rate[person])) < _DAYS - 14:
            season = 1 + 0.7 * np.sin(2 * np.pi * (day - 100) / 365)
            if rng.random() > mood * season / 1.7:
                continue
            sailing = min(np.searchsorted(sailed, day) + rng.integers(0, 30), num_sailings - 1)
            with_friend = rng.random() < 0.3
            bookings.append((person, friend[person] if with_friend else -1, sailing, day))
            if bad[ship[sailing]]:
                mood *= 0.6
                if rng.random() < 0.4:
                    complaints.append((person, sailed[sailing] + rng.exponential(5)))
    passenger, companion, sailing, booked = map(np.array, zip(*bookings, strict=True))
    harbour = rng.integers(0, 9, (2, num_sailings))
    names = np.array([f"P-{each:05d}" for each in rng.permutation(num)])
    angry, said = map(np.array, zip(*complaints, strict=True))
    words = np.array(["late again", "dirty cabin", "rude staff", "cold food", "lost luggage"])
    return {
        "harbours": pd.DataFrame({"code": list("ABCDEFGHI"), "berths": rng.integers(1, 9, 9)}),
        "ships": pd.DataFrame(
            {
                "ship_id": np.arange(num_ships),
                "built": np.where(bad, 1985, 2005) + rng.integers(0, 20, num_ships),
                "capacity": rng.integers(80, 900, num_ships),
            }
        ),
        "passengers": pd.DataFrame(
            {
                "passenger_id": names,
                "home": np.array(list("ABCDEFGHI"))[home],
                "registered": _dates(joined),
            }
        ),
        "sailings": pd.DataFrame(
            {
                "sailing_id": np.arange(num_sailings) + 10_000,
                "ship_id": ship,
                "from_harbour": np.array(list("ABCDEFGHI"))[harbour[0]],
                "to_harbour": np.array(list("ABCDEFGHI"))[harbour[1]],
                "announced": _dates(sailed - 60),
            }
        ),
        "bookings": pd.DataFrame(
            {
                "booking_id": np.arange(len(booked)) + 1,
                "passenger_id": names[passenger],
                "companion_id": pd.Series(names[companion]).where(companion >= 0),
                "sailing_id": sailing + 10_000,
                "booked": _dates(booked),
                "price": rng.gamma(4, 12, len(booked)).round(2),
            }
        ),
        "complaints": pd.DataFrame(
            {
                "complaint_id": np.arange(len(said)) + 1,
                "passenger_id": names[angry],
                "filed": _dates(said),
                "text": rng.choice(words, len(said)),
            }
        ),
    }


def library() -> dict[str, pd.DataFrame]:
    """Members read one book after the other. Long books take longer, and a genre that a member
    dislikes puts them off for months.
    """
    rng = np.random.default_rng(2)
    num, num_books, num_authors = 1_500, 800, 120
    genres = np.array(["crime", "poetry", "travel", "science", "romance"])
    author = rng.integers(0, num_authors, num_books)
    genre = rng.integers(0, 5, num_authors)[author]
    pages = rng.gamma(5, 60, num_books).astype(int) + 40
    taste, speed = rng.dirichlet(np.full(5, 0.7), num), rng.gamma(4, 6, num)
    joined, loans = rng.uniform(0, 700, num), []
    for member in range(num):
        day = joined[member]
        while day < _DAYS:
            book = rng.integers(0, num_books)
            is_liked = rng.random() < taste[member, genre[book]] * 3
            took = pages[book] / speed[member] * (1 if is_liked else 0.3) + rng.exponential(3)
            loans.append((member, book, day, day + took))
            day += took + rng.exponential(8 if is_liked else 90)
    member, book, lent, back = map(
        np.array, zip(*sorted(loans, key=lambda row: row[2]), strict=True)
    )
    isbn = np.array([f"978-{each:06d}" for each in rng.choice(10**6, num_books, replace=False)])
    return {
        "members": pd.DataFrame(
            {
                "member_no": np.arange(num) + 300,
                "born": rng.integers(1940, 2012, num),
                "joined": _dates(joined),
            }
        ),
        "authors": pd.DataFrame(
            {"author_id": np.arange(num_authors), "born": rng.integers(1850, 1990, num_authors)}
        ),
        "books": pd.DataFrame(
            {"isbn": isbn, "author_id": author, "genre": genres[genre], "pages": pages}
        ),
        "loans": pd.DataFrame(
            {
                "loan_id": np.arange(len(lent)) + 1,
                "member_no": member + 300,
                "isbn": isbn[book],
                "lent": _dates(lent),
                "desk": rng.choice(["front", "machine"], len(lent)),
            }
        ),
        "returns": pd.DataFrame({"loan_id": np.arange(len(lent)) + 1, "returned": _dates(back)})[
            back < _DAYS
        ],
    }


MAKERS: dict[str, Callable[[], dict[str, pd.DataFrame]]] = {"ferry": ferry, "library": library}


def write_database(name: str, folder: Path) -> None:
    """Writes the tables as CSV files."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in MAKERS[name]().items():
        rows.to_csv(folder / f"{table}.csv", index=False)


if __name__ == "__main__":
    write_database(sys.argv[1], Path(sys.argv[2]))
