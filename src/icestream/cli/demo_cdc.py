"""`icestream demo --cdc`: mirrors a PostgreSQL server while a small shop changes its tables."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icestream.cli.demo_postgres import DATABASE, HOST, USER, demo_server
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    import psycopg

    from icestream.cli.demo_postgres import DemoServer
    from icestream.cli.output import Printer
    from icestream.engine.run import Run
    from icestream.plan.plan import Plan
    from icestream.verify.comparison import TableReport

MIRROR_FILE = """\
# Written by `icestream demo --cdc`: mirrors every table and every change.
version: "1.0"
sources:
  shop:
    connector: postgres-cdc
    config:
      host: {host}
      port: {port}
      database: {database}
      user: {user}
      password: ${{file:password}}
sinks:
  lake:
    connector: iceberg
    config: {{flush_interval_secs: 1}}
pipelines:
  shop: {{source: shop, sink: lake}}
metrics: {{port: 0}}
"""
CUSTOMERS, ORDERS = 200, 1_000
SHOP_SQL = """
CREATE TABLE customers (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL,
                        country text);
CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id int NOT NULL,
                     status text NOT NULL, total numeric(10, 2), placed_at timestamptz);
INSERT INTO customers (name, country)
SELECT 'customer ' || n, (ARRAY['AT', 'BR', 'CA', 'DK'])[1 + n %% 4]
FROM generate_series(1, %(customers)s) AS n;
INSERT INTO orders (customer_id, status, total, placed_at)
SELECT 1 + n %% %(customers)s, 'placed', n / 7.0, now()
FROM generate_series(1, %(orders)s) AS n;
"""
INSERTED, UPDATED, DELETED = 20, 10, 2
QUERY = """\
SELECT status,
       count(*) AS orders,
       sum(total) AS total,
       count(*) FILTER (WHERE gift) AS gifts
FROM public.orders
GROUP BY status
ORDER BY status"""
CAUGHT_UP_SQL = """
SELECT coalesce(bool_and(confirmed_flush_lsn >= %s::pg_lsn), false) FROM pg_replication_slots
WHERE database = current_database()
"""
CATCH_UP_SECS = 60.0


def run_cdc_demo(printer: Printer, seconds: float, folder: Path | None) -> int:
    """Mirror a changing database, then show that both sides are the same.

    Args:
        printer: prints the result.
        seconds: how long the shop keeps changing its tables.
        folder: where to keep the mirror; None to remove it.
    """
    from icestream.cli.demo import write_demo_config

    kept = folder if folder is not None else Path(tempfile.mkdtemp(prefix="icestream-demo-"))
    try:
        with demo_server() as server:
            text = MIRROR_FILE.format(host=HOST, port=server.port, database=DATABASE, user=USER)
            file = write_demo_config(kept, text)
            _write_password(file.with_name("password"), server.password)
            printer.print_note(
                f"PostgreSQL {server.version} is running on {HOST}:{server.port}, with {CUSTOMERS} "
                f"customers and {ORDERS:,} orders.\n"
                "Mirroring them into Iceberg tables while customers order, pay and cancel."
            )
            return _mirror(printer, server, file, seconds, is_kept=folder is not None)
    finally:
        if folder is None:
            shutil.rmtree(kept, ignore_errors=True)


def _write_password(path: Path, password: str) -> None:
    path.touch(mode=0o600)
    path.write_text(password, encoding="utf-8")


def _mirror(
    printer: Printer, server: DemoServer, file: Path, seconds: float, *, is_kept: bool
) -> int:
    import psycopg

    from icestream.cli.live import run_plan, show_outcome
    from icestream.config import read
    from icestream.engine.run import RunChoices, open_plan_session
    from icestream.plan.planner import build
    from icestream.verify.comparison import TableReport
    from icestream.verify.verify import verify

    plan = build(read(file))
    with psycopg.connect(**server.connection, autocommit=True) as connection:
        cursor = psycopg.ClientCursor(connection)
        cursor.execute(SHOP_SQL, {"customers": CUSTOMERS, "orders": ORDERS})
        shop = ShopSimulator(connection, seconds)
        hint = "Orders are placed, paid and cancelled; the demo stops by itself."
        run = run_plan(plan, RunChoices(), printer, hint=hint, tick=shop.tick)
        if run.exit_code() != 0:
            show_outcome(run, printer)
            return run.exit_code()
        printer.print_note("Comparing every row of the mirror with PostgreSQL ...")
        found = verify(plan, lambda: open_plan_session(plan))
        reports = [report for report in found if isinstance(report, TableReport)]
    _show(printer, plan, run, shop, reports, is_kept=is_kept)
    return 0 if all(report.is_same for report in reports) else 1


class ShopSimulator:
    """Changes a database for some seconds, then waits for the mirror to catch up.

    Args:
        connection: a connection to the database.
        seconds: how long to make changes, from the mirror's first commit.
    """

    def __init__(self, connection: psycopg.Connection[Any], seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._random = random.Random(7)  # noqa: S311 - demo data
        self._ends_at: float | None = None
        self._target_lsn: str | None = None
        self.counts = {"inserted": 0, "updated": 0, "deleted": 0}
        self.has_gifts = False

    def tick(self, run: Run) -> None:
        """Take the next step; called repeatedly while the mirror runs."""
        if self._ends_at is None:
            if any(one.progress.rows for one in run.runners):
                self._ends_at = time.monotonic() + self._seconds
        elif self._target_lsn is None:
            self._advance()
        elif self._has_caught_up():
            run.stop()

    def _advance(self) -> None:
        left = self._ends_at - time.monotonic() if self._ends_at is not None else 0.0
        if left < self._seconds / 2 and not self.has_gifts:
            self._connection.execute("ALTER TABLE orders ADD COLUMN gift boolean")
            self.has_gifts = True
        elif left > 0:
            self._change_orders()
        else:
            row = self._connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            self._target_lsn = None if row is None else row[0]
            self._ends_at = time.monotonic() + CATCH_UP_SECS

    def _change_orders(self) -> None:
        column, value = (", gift", ", n % 5 = 0") if self.has_gifts else ("", "")
        commands = {
            "inserted": f"INSERT INTO orders (customer_id, status, total, placed_at{column}) "  # noqa: S608
            f"SELECT 1 + (random() * {CUSTOMERS - 1})::int, 'placed', "
            f"round((random() * 100)::numeric, 2), now(){value} "
            f"FROM generate_series(1, {INSERTED}) AS n",
            "updated": "UPDATE orders SET status = 'paid' WHERE id IN "  # noqa: S608
            f"(SELECT id FROM orders WHERE status = 'placed' ORDER BY random() LIMIT {UPDATED})",
            "deleted": "DELETE FROM orders WHERE id IN "  # noqa: S608
            f"(SELECT id FROM orders ORDER BY random() LIMIT {self._random.randint(1, DELETED)})",
        }
        with self._connection.transaction():
            for what, command in commands.items():
                self.counts[what] += self._connection.execute(command.encode()).rowcount

    def _has_caught_up(self) -> bool:
        row = self._connection.execute(CAUGHT_UP_SQL, [self._target_lsn]).fetchone()
        if row is not None and row[0]:
            return True
        if self._ends_at is not None and time.monotonic() > self._ends_at:
            raise IcestreamError(
                f"the mirror did not catch up within {CATCH_UP_SECS:g} s",
                where="demo",
                todo="Run it again with --verbose, on a less busy machine.",
            )
        return False


def _show(
    printer: Printer,
    plan: Plan,
    run: Run,
    shop: ShopSimulator,
    reports: list[TableReport],
    *,
    is_kept: bool,
) -> None:
    from icestream.cli.live import summary_line
    from icestream.cli.query import query_document, query_text
    from icestream.cli.verify import report_text
    from icestream.tables.query import query

    answer = query(QUERY, plan.catalogs)
    document = {
        "folder": str(plan.path.parent) if is_kept else None,
        "changes": shop.counts,
        "pipelines": [runner.progress.to_json() for runner in run.runners],
        "query": {"sql": QUERY, **query_document(answer)},
        "verify": [report.to_json() for report in reports],
    }
    changed = ", ".join(f"{number:,} rows {what}" for what, number in shop.counts.items())
    parts = [
        "\n".join(summary_line(runner) for runner in run.runners),
        f"Changes in PostgreSQL: {changed}; column `gift` added to orders",
        click.style("Query of the Iceberg table", bold=True),
        "\n".join(f"    {line}" for line in QUERY.splitlines()),
        query_text(answer),
        click.style("Comparison with PostgreSQL, row by row", bold=True) + " (icestream verify)",
        "\n".join(report_text(report) for report in reports),
        "Mirror your own database: icestream init postgres://user@host:5432/database",
    ]
    if is_kept:
        parts.append(f"The PostgreSQL server was removed. The tables are in {plan.path.parent}")
    printer.print_result(document, "\n\n".join(parts))
