"""Folders of raw tables as teams export them, each with its own kind of mess, and their references.

In each folder the question has an answer that the graph knows and the row itself does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Array = np.ndarray
WriteTables = Callable[[Path, np.random.Generator], None]
WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "flint", "grove"),
    *("haven", "inlet", "jetty", "knoll", "lunar", "mango", "north"),
)


class RawFolder(NamedTuple):
    """A folder that is drafted with defaults.

    Attributes:
        write: writes the tables.
        references: the true ones, as `table.column -> table.key`.
        task: the task that is drafted; it is learned better than by any baseline.
    """

    write: WriteTables
    references: set[str]
    task: str


FOLDERS: dict[str, RawFolder] = {}


def raw_folder(task: str, *references: str) -> Callable[[WriteTables], WriteTables]:
    def register(write: WriteTables) -> WriteTables:
        FOLDERS[write.__name__] = RawFolder(write, {*references}, task)
        return write

    return register


def write_text(
    path: Path, separator: str = ",", encoding: str = "utf-8", **columns: Sequence[Any]
) -> None:
    """Writes a text table as other tools do; None is an empty field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(*columns.values(), strict=True)
    lines = [separator.join(columns)]
    lines += [separator.join("" if v is None else str(v) for v in row) for row in rows]
    path.write_bytes("\r\n".join([*lines, ""]).encode(encoding))


def days(offsets: Array, form: str = "%Y-%m-%d") -> list[str]:
    start = np.datetime64("2022-01-01")
    return [(start + np.timedelta64(int(d), "D")).astype(object).strftime(form) for d in offsets]


def names(rng: np.random.Generator, num: int, accents: str = "") -> list[str]:
    pick = rng.integers(0, len(WORDS), (num, 2))
    return [f"{WORDS[a].title()}{accents} {WORDS[b].title()} {i}" for i, (a, b) in enumerate(pick)]


def liked(rng: np.random.Generator, taste: Array, kind: Array, num: int) -> tuple[Array, Array]:
    """Pairs of someone and something, of the same of four groups in nine cases of ten."""
    who = rng.integers(0, len(taste), num)
    groups = np.where(rng.random(num) < 0.9, taste[who], rng.integers(0, 4, num))
    members = [np.flatnonzero(kind == group) for group in range(4)]
    what = [rng.choice(members[group]) for group in groups]
    return who, np.array(what)


@raw_folder("links of ratings", "ratings.user_id -> users.id", "ratings.movie_id -> movies.id")
def movies(folder: Path, rng: np.random.Generator) -> None:
    """`id` everywhere, stars of 1 to 5, unknown ids in 0.03 % of the rows, lists, latin-1."""
    taste, genre = rng.integers(0, 4, 400), rng.integers(0, 4, 200)
    who, what = liked(rng, taste, genre, 6000)
    write_text(
        folder / "users.csv", id=range(1, 401), age=rng.integers(18, 70, 400), occupation=taste + 1
    )
    kinds = np.array(["Action|Crime", "Drama", "Comedy|Romance", "Horror|Crime"])
    titles = names(rng, 200, "é")
    write_text(
        folder / "movies.csv",
        encoding="latin-1",
        id=range(1, 201),
        title=titles,
        genres=kinds[genre],
    )
    movie_id = what + 1
    movie_id[:2] = 9999
    seconds = 1_640_995_200 + np.sort(rng.integers(0, 10**7, 6000))
    write_text(
        folder / "ratings.csv",
        id=range(1, 6001),
        user_id=who + 1,
        movie_id=movie_id,
        rating=rng.integers(1, 6, 6000),
        timestamp=seconds,
    )


@raw_folder(
    "podium.label",
    "races.circuitId -> circuits.circuitId",
    "results.raceId -> races.raceId",
    "results.driverId -> drivers.driverId",
    "results.constructorId -> constructors.constructorId",
    "driver_standings.raceId -> races.raceId",
    "driver_standings.driverId -> drivers.driverId",
    "podium.driverId -> drivers.driverId",
)
def racing(folder: Path, rng: np.random.Generator) -> None:
    r"""camelCase, `\N`, results without times, standings with them, and a table of questions."""
    circuits, teams, drivers, races = 12, 10, 60, 80
    write_text(
        folder / "circuits.csv",
        circuitId=range(1, 13),
        name=names(rng, 12),
        alt=[r"\N", *range(11)],
    )
    write_text(folder / "constructors.csv", constructorId=range(1, 11), name=names(rng, 10))
    write_text(
        folder / "drivers.csv",
        driverId=range(1, 61),
        number=[r"\N" if i % 3 else i for i in range(60)],
        surname=[f"S{i}" for i in range(60)],
        dob=days(-rng.integers(7000, 15000, 60)),
    )
    day = np.arange(races) * 14
    write_text(
        folder / "races.csv",
        raceId=range(1, 81),
        year=2022 + day // 365,
        round=np.arange(races) % 20 + 1,
        circuitId=rng.integers(1, circuits + 1, races),
        date=days(day),
    )
    form = rng.normal(size=(drivers, 3))  # of a driver in each 400 days
    race = np.repeat(np.arange(races), 20)
    driver = np.concatenate([rng.permutation(drivers)[:20] for _ in range(races)])
    team = driver % teams
    points = np.round(form[driver, day[race] // 400] * 5 + rng.normal(size=len(race)) + 12)
    ids = {"raceId": race + 1, "driverId": driver + 1, "constructorId": team + 1}
    write_text(
        folder / "results.csv",
        resultId=range(1, len(race) + 1),
        **ids,
        position=[r"\N" if p < 5 else int(p) for p in points],
        grid=rng.integers(1, 21, len(race)),
        laps=rng.integers(40, 60, len(race)),
        points=points,
    )
    write_text(
        folder / "driver_standings.csv",
        driverStandingsId=range(1, len(race) + 1),
        raceId=ids["raceId"],
        driverId=ids["driverId"],
        points=points,
        position=rng.integers(1, 21, len(race)),
        wins=rng.integers(0, 4, len(race)),
        date=days(day[race]),
    )
    asked = rng.integers(200, 14 * races, 1200)
    who = rng.integers(0, drivers, 1200)
    label = (form[who, asked // 400] + rng.normal(size=1200) * 0.6 > 0).astype(int)
    write_text(folder / "podium.csv", driverId=who + 1, date=days(asked), label=label)


@raw_folder(
    "loans.status",
    "accounts.district_id -> districts.district_id",
    "transactions.account_id -> accounts.account_id",
    "loans.account_id -> accounts.account_id",
)
def bank(folder: Path, rng: np.random.Generator) -> None:
    """Semicolons, decimal commas, ids with gaps written as floats, statuses of loans."""
    ids = np.sort(rng.choice(10**5, 600, replace=False))
    district = rng.integers(1, 31, 600)
    risk = rng.normal(size=30)[district - 1] + 0.2 * rng.normal(size=600)
    semicolons = {"separator": ";"}
    write_text(
        folder / "districts.csv",
        **semicolons,
        district_id=range(1, 31),
        inhabitants=rng.integers(10**4, 10**6, 30),
    )
    write_text(
        folder / "accounts.csv",
        **semicolons,
        account_id=ids,
        district_id=[None if i % 50 == 0 else f"{d}.0" for i, d in enumerate(district)],
        frequency=rng.choice(["monthly fee", "weekly fee", "per use"], 600),
    )
    row = rng.integers(0, 600, 5000)
    amount = np.exp(1 - risk[row] + 0.3 * rng.normal(size=5000)) * 100
    write_text(
        folder / "transactions.csv",
        **semicolons,
        trans_id=range(5000),
        account_id=ids[row],
        type=rng.choice(["credit", "withdrawal"], 5000),
        amount=[f"{a:.2f}".replace(".", ",") for a in amount],
        date=days(rng.integers(0, 300, 5000), "%d.%m.%Y"),
    )
    write_text(
        folder / "loans.csv",
        **semicolons,
        loan_id=rng.choice(10**6, 600, replace=False),
        account_id=ids,
        duration=rng.choice([12, 24, 36, 48, 60], 600),
        status=np.where(risk > 0, "default", "paid"),
        date=days(rng.integers(300, 600, 600), "%d.%m.%Y"),
    )


@raw_folder(
    "links of purchases",
    "products.category -> categories.category_id",
    "purchases.customer -> customers.customer_no",
    "purchases.product_sku -> products.sku",
)
def shop(folder: Path, rng: np.random.Generator) -> None:
    """Leading zeros that only one file has, rows that are there twice, Parquet beside CSV."""
    taste, kind = rng.integers(0, 4, 300), rng.integers(0, 4, 120)
    customers = [f"{i:06d}" for i in range(1, 301)]
    country = np.array(["DE", "FR", "IT", "ES"])[taste]
    columns = {"customer_no": customers, "country": country, "orders": rng.integers(1, 40, 300)}
    pq.write_table(
        pa.table({k: pa.array(list(v)) for k, v in columns.items()}), folder / "customers.parquet"
    )
    write_text(
        folder / "categories.csv",
        category_id=range(1, 9),
        name=[f"{WORDS[i]} goods" for i in range(8)],
    )
    skus = np.array([f"SKU-{i * 7919 % 99991:05d}" for i in range(120)])
    twice = np.r_[np.arange(120), 5]
    products = {
        "sku": skus[twice],
        "category": kind[twice] + 1 + 4 * (twice % 2),
        "price": np.round(rng.lognormal(size=121), 2),
    }
    write_text(folder / "products.csv", **products)
    who, what = liked(rng, taste, kind, 4000)
    part = np.array_split(np.arange(4000), 2)
    stamps = days(np.sort(rng.integers(0, 700, 4000)))
    for i, rows in enumerate(part):
        write_text(
            folder / f"purchases-{i}.csv",
            customer=[int(customers[w]) for w in who[rows]],
            product_sku=skus[what[rows]],
            quantity=rng.integers(1, 6, len(rows)),
            bought_at=[stamps[row] for row in rows],
        )


@raw_folder(
    "visits.readmitted",
    "doctors.dept -> departments.code",
    "visits.patient_id -> patients.patient_id",
    "visits.physician -> doctors.doctor_id",
)
def clinic(folder: Path, rng: np.random.Generator) -> None:
    """Text ids, words for gaps, days before months, and a yes that depends on the ward."""
    codes = ["CARD", "NEUR", "ORTH", "PEDI", "ONCO", "EMER"]
    dept = rng.integers(0, 6, 40)
    write_text(folder / "departments.csv", code=codes, beds=[20, 30, 25, 40, 10, 60])
    write_text(
        folder / "doctors.csv",
        encoding="cp1252",
        doctor_id=[f"D{i:03d}" for i in range(40)],
        dept=np.array(codes)[dept],
        doctor_name=names(rng, 40, "ü"),
        years=[None if i % 9 == 0 else i for i in range(40)],
    )
    write_text(
        folder / "patients.csv",
        patient_id=[f"P{i:04d}" for i in range(500)],
        sex=rng.choice(["F", "M", "NA"], 500),
        weight=[None if i % 11 == 0 else "NA" if i % 7 == 0 else 50 + i % 60 for i in range(500)],
    )
    patient, doctor = rng.integers(0, 500, 2500), rng.integers(0, 40, 2500)
    chance = 1 / (1 + np.exp(-np.array([3, -3, 2, -2, 3, -3])[dept[doctor]]))
    start = np.sort(rng.integers(0, 900, 2500))
    write_text(
        folder / "visits.csv",
        visit_id=range(1, 2501),
        patient_id=[f"P{p:04d}" for p in patient],
        physician=[f"D{d:03d}" for d in doctor],
        visit_date=days(start, "%d/%m/%Y"),
        reason=rng.choice(["chest pain", "check up", "fall", "fever"], 2500),
        cost=np.round(rng.lognormal(5, 1, 2500), 2),
        duration=rng.integers(5, 90, 2500),
        readmitted=np.where(rng.random(2500) < chance, "yes", "no"),
    )


@raw_folder(
    "Posts.label",
    "Posts.ParentId -> Posts.Id",
    "Posts.OwnerUserId -> Users.Id",
    "Votes.PostId -> Posts.Id",
)
def forum(folder: Path, rng: np.random.Generator) -> None:
    """Posts that answer posts, owners as 121.0, a table with tabs, texts with line breaks."""
    topics = [["engine", "wheel", "brake"], ["soil", "seed", "leaf"], ["bread", "yeast", "oven"]]
    write_text(
        folder / "Users.csv",
        Id=range(1, 301),
        Reputation=rng.integers(1, 999, 300),
        UpVotes=range(300),
    )
    topic = rng.integers(0, 3, 1500)
    topic[500:] = topic[(parents := rng.integers(0, 500, 1000))]
    bodies = [
        '"' + " ".join(rng.choice([*topics[t], *WORDS], 9)) + (',\nwell"' if i % 9 else '"')
        for i, t in enumerate(topic)
    ]
    write_text(
        folder / "Posts.csv",
        Id=range(1, 1501),
        ParentId=[None] * 500 + [f"{p + 1}.0" for p in parents],
        OwnerUserId=[
            None if i % 40 == 0 else f"{u}.0" for i, u in enumerate(rng.integers(1, 301, 1500))
        ],
        Score=rng.integers(0, 30, 1500),
        Body=bodies,
        CreationDate=days(np.sort(rng.integers(0, 500, 1500))),
        label=np.array(["cars", "plants", "food"])[topic],
    )
    write_text(
        folder / "Votes.tsv",
        "\t",
        Id=range(1, 3001),
        PostId=rng.integers(1, 1501, 3000),
        VoteTypeId=rng.integers(1, 6, 3000),
        CreationDate=days(rng.integers(0, 500, 3000)),
    )


@raw_folder(
    "returns.label",
    "rooms.type_id -> room_types.type_id",
    "stays.guest_id -> guests.guest_id",
    "stays.room_no -> rooms.room_no",
    "returns.guest_id -> guests.guest_id",
)
def hotel(folder: Path, rng: np.random.Generator) -> None:
    """A question in a table of its own, rooms by short numbers, a lookup of two rows."""
    write_text(folder / "room_types.csv", type_id=[1, 2], name=["single", "double"])
    write_text(
        folder / "rooms.csv",
        room_no=range(101, 151),
        type_id=rng.integers(1, 3, 50),
        floor=np.arange(50) // 25 + 1,
    )
    write_text(
        folder / "guests.csv", guest_id=range(1, 251), country=rng.choice(["DE", "US", "JP"], 250)
    )
    who, arrival = rng.integers(0, 250, 4000), np.sort(rng.integers(0, 600, 4000))
    write_text(
        folder / "stays.csv",
        guest_id=who + 1,
        room_no=rng.integers(101, 151, 4000),
        arrival=days(arrival),
        nights=rng.integers(1, 9, 4000),
    )
    asked, moment = rng.integers(0, 250, 2000), np.sort(rng.integers(100, 600, 2000))
    last = np.array(
        [
            arrival[(who == g) & (arrival <= t)].max(initial=0)
            for g, t in zip(asked, moment, strict=True)
        ]
    )
    label = (moment - last < 25) ^ (rng.random(2000) < 0.05)
    for name, rows in {
        "train": slice(0, 1400),
        "val": slice(1400, 1700),
        "test": slice(1700, 2000),
    }.items():
        write_text(
            folder / "returns" / f"{name}.csv",
            guest_id=asked[rows] + 1,
            date=days(moment[rows]),
            label=label[rows] * 1,
        )


@raw_folder("links of loans", "loans.member -> members.member", "loans.book_isbn -> books.isbn")
def library(folder: Path, rng: np.random.Generator) -> None:
    """ISBNs that CSV makes numbers, UTF-16, short texts, an empty column, a duplicate header."""
    taste, kind = rng.integers(0, 4, 300), rng.integers(0, 4, 150)
    isbn = np.array([f"{i * 7907 % 9973:04d}" for i in range(1, 151)])
    columns = {"isbn": isbn, "genre": np.array(["crime", "poetry", "science", "travel"])[kind]}
    pq.write_table(
        pa.table({k: pa.array(list(v)) for k, v in columns.items()}), folder / "books.parquet"
    )
    write_text(
        folder / "members.csv",
        encoding="utf-16",
        member=range(1001, 1301),
        interest=np.array(["law", "verse", "maths", "maps"])[taste],
        note=[None] * 300,
    )
    who, what = liked(rng, taste, kind, 4000)
    write_text(
        folder / "loans.csv",
        loan_no=range(1, 4001),
        member=who + 1001,
        book_isbn=[int(i) for i in isbn[what]],
        lent_on=days(np.sort(rng.integers(0, 500, 4000)), "%Y/%m/%d"),
    )
