"""Migrations of a database: from nothing, of a populated one, from a newer version, by processes at once; and
the whole ledger on a PostgreSQL server that the test starts for itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, MetaData, Table, create_engine, inspect, text

from infra_agent.domain import Campaign, CampaignSpec, Change, Experiment, Hypothesis, ModelCall, Proposal, State
from infra_agent.errors import StoreUnavailable
from infra_agent.store import new_id, open_store
from infra_agent.store.rows import campaign_row
from infra_agent.store.schema import MIGRATIONS
from infra_agent.store.tables import metadata

ROOT = Path(__file__).parents[2]
NEXT_REVISION = '''"""Copies and drops a table that others refer to, as batch mode does on SQLite."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "@HEAD@"


def upgrade() -> None:
    recreate = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("campaign", recreate=recreate) as table:
        table.add_column(sa.Column("note", sa.String))
'''
FAILING_STEP = '    raise RuntimeError("power cut")\n'


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """URL of a fresh PostgreSQL server on a socket of its own, run as an unprivileged user."""
    programs = [
        shutil.which("initdb"),
        *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True),
    ]
    initdb = next((Path(program) for program in programs if program), None)
    if initdb is None or find_spec("psycopg") is None:
        pytest.skip("PostgreSQL or psycopg is not installed")
    user = 65534 if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as name:
        directory = Path(name)
        if user is not None:
            os.chown(directory, user, user)
        data = directory / "data"
        make = [
            str(initdb),
            "-D",
            str(data),
            "-U",
            "store",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
            "--locale=C",
        ]
        subprocess.run(make, check=True, user=user, cwd="/", capture_output=True)
        postgres = str(initdb.with_name("postgres"))
        serve = [postgres, "-D", str(data), "-k", str(directory), "-h", "", "-F"]
        with (directory / "log").open("wb") as log:
            server = subprocess.Popen(serve, user=user, cwd="/", stdout=log, stderr=log)
        try:
            url = f"postgresql+psycopg://store@/postgres?host={directory}"
            _wait_for(directory / ".s.PGSQL.5432", server)
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


def _wait_for(socket: Path, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if socket.exists():
            return
        assert server.poll() is None, "PostgreSQL ended at once"
        time.sleep(0.1)
    raise AssertionError("PostgreSQL did not start within 30 s")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that does not exist yet, or is empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/store.db"
    server: str = request.getfixturevalue("postgresql")
    with _engine(server).begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    return server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


_ENGINES: list[Engine] = []


def _engine(url: str) -> Engine:
    """An engine that the end of the test closes."""
    engine = create_engine(url)
    _ENGINES.append(engine)
    return engine


@pytest.fixture(autouse=True)
def _close_engines() -> Iterator[None]:
    yield
    while _ENGINES:
        _ENGINES.pop().dispose()


def campaign_of_a_test() -> Campaign:
    return Campaign(
        id=new_id("cmp"),
        spec=CampaignSpec(target="t"),
        target_name="t",
        target_toml="",
        source_commit="s",
        base_commit="b",
        host_fingerprint="h",
    )


def populate(url: str) -> Campaign:
    """Store a campaign with one experiment."""
    campaign = campaign_of_a_test()
    experiment = Experiment(
        id=new_id("exp"),
        campaign_id=campaign.id,
        number=0,
        role="baseline",
        state=State.WAITING,
        proposal=Proposal(hypothesis=Hypothesis(claim="nothing changes"), change=Change()),
        parent_commit="b",
    )
    with open_store(url) as store, store.transaction() as ledger:
        ledger.add_campaign(campaign)
        ledger.add_experiment(experiment)
    return campaign


def newer_version(tmp_path: Path, more: str = "") -> Path:
    """The migrations of a version that has one revision more."""
    migrations, head = tmp_path / "migrations", ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert head is not None
    shutil.copytree(MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    (migrations / "versions" / "9999_next.py").write_text(NEXT_REVISION.replace("@HEAD@", head) + more)
    return migrations


def test_migrations_from_nothing_make_the_tables_that_the_code_uses(url: str) -> None:
    open_store(url).close()
    with _engine(url).connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
        constraints = inspect(connection).get_unique_constraints("experiment")
        assert [found["column_names"] for found in constraints] == [["campaign_id", "number"]]


def test_opening_again_changes_nothing(url: str) -> None:
    campaign = populate(url)
    with open_store(url) as store, store.transaction(read_only=True) as ledger:
        assert ledger.campaign("latest") == campaign
        assert len(ledger.experiments(campaign.id)) == 1


def test_a_populated_database_keeps_its_rows_through_a_rebuilt_table(url: str, tmp_path: Path) -> None:
    campaign = populate(url)
    open_store(url, migrations=newer_version(tmp_path)).close()
    with _engine(url).connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"
        assert connection.execute(text("SELECT id, note FROM campaign")).all() == [(campaign.id, None)]
        assert connection.execute(text("SELECT count(*) FROM experiment")).scalar() == 1
        assert connection.execute(text("SELECT count(*) FROM hypothesis")).scalar() == 1


def test_a_campaign_of_the_first_revision_is_read_as_one_without_a_script(url: str, tmp_path: Path) -> None:
    first = tmp_path / "first"
    shutil.copytree(MIGRATIONS, first, ignore=shutil.ignore_patterns("__pycache__", "000[2-9]_*"))
    open_store(url, migrations=first).close()
    campaign = campaign_of_a_test()
    row = campaign_row(campaign)
    del row["script"]
    with _engine(url).begin() as connection:
        connection.execute(metadata.tables["campaign"].insert(), row)
    with open_store(url) as store, store.transaction() as ledger:
        assert ledger.campaigns() == (campaign,)
        assert campaign.script == ()


def version(tmp_path: Path, last: str) -> Path:
    """The migrations of the version whose newest revision was `last`."""
    migrations, scripts = tmp_path / f"until-{last}", ScriptDirectory(str(MIGRATIONS))
    shutil.copytree(MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    known = {script.revision for script in scripts.iterate_revisions(last, "base")}
    for path in (migrations / "versions").glob("*.py"):
        if path.name.partition("_")[0] not in known:
            path.unlink()
    return migrations


def test_model_calls_of_before_count_with_their_tokens_and_at_no_price(url: str, tmp_path: Path) -> None:
    before = ScriptDirectory(str(MIGRATIONS)).get_revision("0007").down_revision
    assert isinstance(before, str)
    open_store(url, migrations=version(tmp_path, before)).close()
    campaign = campaign_of_a_test()
    call = ModelCall(campaign_id=campaign.id, request_hash="h1", model="m", request="{}", response="{}")
    told = call.model_copy(update={"request_hash": "h2", "prompt_tokens": 90, "completion_tokens": 8})
    engine = _engine(url)
    with engine.begin() as connection:
        for name, rows in (
            ("campaign", [campaign_row(campaign)]),
            ("model_call", [call.model_dump(), told.model_dump()]),
        ):
            table = Table(name, MetaData(), autoload_with=connection)
            typed = metadata.tables[name]
            kept = [{c.name: row[c.name] for c in table.c if c.name in row} for row in rows]
            connection.execute(typed.insert().values(kept))
    with open_store(url) as store, store.transaction() as ledger:
        silent, counted = ledger.reservations(campaign.id)
        assert (silent.request_hash, silent.state, silent.is_estimated, silent.prompt_tokens) == (
            "h1",
            "settled",
            True,
            0,
        )
        assert (counted.request_hash, counted.is_estimated, counted.nanodollars) == ("h2", False, None)
        assert (counted.prompt_tokens, counted.completion_tokens, counted.cached_tokens) == (90, 8, 0)
        assert counted.created_at == told.created_at
        use = ledger.model_use(campaign.id)
        assert (use.tokens, use.n_calls, use.n_unpriced, use.unpriced_prompt_tokens) == (98, 2, 2, 90)
        again = ledger.add_reservation(counted.model_copy(update={"id": 0, "state": "open"}))
        assert again.id > counted.id


def test_an_experiment_of_before_has_lost_no_time(url: str) -> None:
    campaign = populate(url)
    with _engine(url).begin() as connection:
        connection.execute(text("UPDATE experiment SET lost_s = NULL"))
    with open_store(url) as store, store.transaction(read_only=True) as ledger:
        (found,) = ledger.experiments(campaign.id)
        assert found.lost_s == 0.0


def test_a_migration_that_fails_changes_nothing(url: str, tmp_path: Path) -> None:
    campaign = populate(url)
    with pytest.raises(RuntimeError, match="power cut"):
        open_store(url, migrations=newer_version(tmp_path, FAILING_STEP))
    with open_store(url) as store, store.transaction() as ledger:
        assert ledger.campaigns() == (campaign,)
    assert "note" not in {column["name"] for column in inspect(_engine(url)).get_columns("campaign")}


def test_a_database_of_a_newer_version_asks_for_an_upgrade(url: str, tmp_path: Path) -> None:
    open_store(url, migrations=newer_version(tmp_path)).close()
    with pytest.raises(StoreUnavailable, match=r"newer version of infra-agent \(revision 9999\); upgrade"):
        open_store(url)


def test_another_programs_database_is_refused_untouched(url: str, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with _engine(url).begin() as connection:
        connection.execute(text("CREATE TABLE event (mine integer)"))
    with pytest.raises(StoreUnavailable, match=r"another program's tables \(event\)"):
        open_store(url)
    assert inspect(_engine(url)).get_table_names() == ["event"]


def test_processes_that_open_a_fresh_database_at_once_all_succeed(url: str) -> None:
    program = (
        "import sys, time; from infra_agent.store import open_store\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "with open_store(sys.argv[1]) as store, store.transaction() as ledger: print(ledger.campaigns())"
    )
    command = [sys.executable, "-W", "error", "-c", program, url]
    pipe = subprocess.PIPE
    racers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT, text=True) for _ in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60) for racer in racers]
    assert [(racer.returncode, *lines) for racer, lines in zip(racers, said, strict=True)] == [(0, "()\n", "")] * 4


def test_the_ledger_works_on_postgresql(postgresql: str) -> None:
    """Run the ledger's own tests there."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_store.py"]
    environment = os.environ | {"INFRA_AGENT_TEST_POSTGRESQL": postgresql}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-5000:]
    assert "passed" in result.stdout


def test_downgrade_of_the_first_revision_leaves_nothing(sqlite_url: str) -> None:
    from alembic import command
    from alembic.config import Config

    open_store(sqlite_url).close()
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with _engine(sqlite_url).begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert inspect(_engine(sqlite_url)).get_table_names() == ["alembic_version"]
