"""A server's log with an incident in it, a module of old code, and tables of figures."""
# ruff: noqa: E501 - tables of words

from __future__ import annotations

import random
from collections.abc import Sequence

from prose import grown

SERVICES = ("gateway", "orders", "billing", "stock", "mailer", "search", "sessions", "reports")
CALM = (
    "request done path=/v2/{noun}/{id} status=200 took_ms={ms}",
    "cache refreshed entries={many} took_ms={ms}",
    "connection opened peer=10.4.{b}.{c} pool={b}/64",
    "job finished name=nightly-{noun} rows={many} took_ms={more}",
    "config reloaded version={id}",
    "request done path=/v2/{noun} status=201 took_ms={ms} bytes={many}",
    "session renewed user={id} ttl_s={many}",
    "batch sent topic={noun} messages={b} offset={more}",
    "slow query table={noun} took_ms={many} plan=seq_scan",
)
TROUBLE = (
    "request failed path=/v2/{noun}/{id} status=503 took_ms={many} reason=upstream_timeout",
    "pool exhausted peer=10.4.{b}.{c} waiting={b} oldest_ms={many}",
    "retry attempt={c} topic={noun} backoff_ms={many}",
    "circuit opened upstream={noun} failures={b} window_s=30",
    "disk nearly full mount=/var/lib/{noun} free_mb={ms}",
    "replica lags behind table={noun} lag_ms={many}",
    "message dropped topic={noun} id={id} reason=deadline",
)
NOUNS = ("orders", "invoices", "parcels", "customers", "vouchers", "returns", "carts", "prices", "refunds", "labels")

ENTITIES = (
    ("Shipment", ("carrier", "weight_g", "tracking", "left_at")), ("Voucher", ("code", "percent", "valid_until", "used_by")),
    ("Supplier", ("name", "vat_id", "lead_days", "contact")), ("Return", ("reason", "received_at", "condition", "refund")),
    ("Pallet", ("bay", "height_cm", "sealed", "stacked_on")), ("Invoice", ("number", "net", "vat_rate", "paid_at")),
    ("Route", ("driver", "stops", "distance_km", "starts_at")), ("Rating", ("stars", "comment", "author", "flagged")),
    ("Campaign", ("title", "budget", "channel", "ends_at")), ("Bin", ("aisle", "shelf", "capacity", "hazard")),
    ("Employee", ("badge", "shift", "hourly_rate", "trained_on")), ("Device", ("serial", "firmware", "seen_at", "owner")),
    ("Contract", ("partner", "signed_at", "notice_days", "penalty")), ("Reminder", ("level", "sent_at", "fee", "answer")),
    ("Tariff", ("zone", "base_price", "per_kg", "since")), ("Damage", ("part", "photo", "estimate", "insurer")),
    ("Claim", ("filed_at", "amount", "decided_by", "appeal")), ("Lot", ("harvest", "grade", "moisture", "silo")),
)  # fmt: skip
METHODS = (
    """    def find_{noun}_by_{field}(self, {field}, strict=False):
        rows = self.db.execute("SELECT * FROM {noun}s WHERE {field} = '%s'" % {field}).fetchall()
        if strict and len(rows) != 1:
            raise Exception("{noun}: {field} not unique: " + str({field}))
        return [self._{noun}_from_row(row) for row in rows]
""",
    """    def update_{noun}_{field}(self, id, {field}, user=None):
        old = self.load_{noun}(id)
        if old == None:
            return False
        self.db.execute("UPDATE {noun}s SET {field} = ? WHERE id = ?", ({field}, id))
        self.log.append((time.time(), user or "system", "{noun}", id, "{field}", old.{field}, {field}))
        if len(self.log) > {limit}:
            self.flush_log()
        return True
""",
    """    def {noun}s_without_{field}(self):
        result = []
        for {noun} in self.all_{noun}s():
            try:
                if not {noun}.{field}:
                    result.append({noun})
            except AttributeError:
                pass
        return sorted(result, key=lambda each: each.{other})[:{limit}]
""",
    """    def export_{noun}s_by_{field}(self, path):
        groups = {{}}
        for {noun} in self.all_{noun}s():
            groups.setdefault(str({noun}.{field}), []).append({noun}.{other})
        f = open(path, "w")
        for key in groups:
            f.write(key + ";" + ",".join(str(value) for value in groups[key][:{limit}]) + "\\n")
        return len(groups)
""",
    """    def check_{noun}_{field}(self, {noun}):
        problems = []
        if {noun}.{field} is None:
            problems.append("{noun} " + str({noun}.id) + " has no {field}")
        elif {noun}.{other} is not None and len(str({noun}.{field})) > {limit}:
            problems.append("{noun} " + str({noun}.id) + ": {field} too long beside {other}")
        self.problems.extend(problems)
        return problems == []
""",
)
TOWNS = (
    "Aldbury", "Brightwell", "Coldharbour", "Dunmere", "Eastlow", "Fenwick", "Garsdale", "Holmfield", "Inchcombe", "Kelby",
    "Langport", "Mossley", "Northam", "Orford", "Penrith", "Quarry Bank", "Rushden", "Saltash", "Thornbury", "Upwell",
)  # fmt: skip


def log(source: random.Random, characters: int) -> str:
    """Return a log: a calm time, trouble in one service that spreads, and its end."""
    now_s = source.randint(3 * 3600, 20 * 3600) * 1.0
    sick = source.choice(SERVICES)
    expected = characters / 95

    def line(number: int) -> str:
        nonlocal now_s
        phase = number / expected
        is_bad = 0.4 < phase < 0.8 and source.random() < 0.75
        now_s += source.expovariate(2.5 if is_bad else 0.6)
        service = sick if is_bad and source.random() < 0.6 else source.choice(SERVICES)
        level = source.choice(("WARN", "ERROR")) if is_bad else source.choice(("INFO", "INFO", "DEBUG"))
        text = source.choice(TROUBLE if is_bad else CALM).format(
            noun=source.choice(NOUNS),
            id=f"{source.getrandbits(28):07x}",
            ms=source.randint(2, 950),
            many=source.randint(1000, 98_000),
            more=source.randint(1000, 98_000),
            b=source.randint(1, 64),
            c=source.randint(1, 250),
        )
        whole, part = divmod(now_s, 1)
        clock = f"{int(whole) // 3600:02}:{int(whole) // 60 % 60:02}:{int(whole) % 60:02}.{int(part * 1000):03}"
        return f"{clock} {level:5} {service}[{source.randint(1, 6)}] {text}"

    lines: list[str] = []
    while sum(map(len, lines)) + len(lines) < characters:
        lines.append(line(len(lines)))
    return "\n".join(lines)


def module(source: random.Random, characters: int) -> str:
    """Return an old class that does everything for everybody."""
    entities = source.sample(ENTITIES, len(ENTITIES))
    done: set[tuple[int, str, str]] = set()

    def methods(number: int) -> str:
        name, fields = entities[(number - 1) % len(entities)]
        noun = name.lower()
        found: list[str] = []
        if number <= len(entities):
            found.append(f"    # ---- {noun}s: {', '.join(fields)}")
        for index in source.sample(range(len(METHODS)), 3):
            field, other = source.sample(fields, 2)
            if (index, noun, field) in done:
                continue
            done.add((index, noun, field))
            limit = source.randint(5, 400)
            found.append(METHODS[index].format(noun=noun, field=field, other=other, limit=limit))
        return "\n".join(found)

    return (
        "import time\n\n\nclass Warehouse:\n    def __init__(self, db):\n        self.db = db\n        self.log = []\n"
        "        self.problems = []\n\n" + grown(methods, characters)
    )


def table(source: random.Random, characters: int) -> str:
    """Return monthly figures of branches, with gaps and one month that cannot be right."""
    towns = source.sample(TOWNS, 12)
    level = {town: source.uniform(4_000, 60_000) for town in towns}
    rows = ["month | branch | sold | returned | staff hours | revenue"]
    month = 0
    while sum(map(len, rows)) + len(rows) < characters:
        year, index = divmod(month, 12)
        for town in towns:
            level[town] *= source.uniform(0.93, 1.08)
            sold = round(level[town])
            cells: Sequence[str] = (
                str(sold),
                str(round(sold * source.uniform(0.01, 0.06))),
                f"{source.uniform(120, 900):.1f}",
                f"{sold * source.uniform(2.2, 2.9):.2f}" if source.random() > 0.03 else "",
            )
            rows.append(" | ".join((f"{2019 + year}-{index + 1:02}", town, *cells)))
        month += 1
    return "\n".join(rows)
