"""The Ledger on a real database: SQLite, or the PostgreSQL that INFRA_AGENT_TEST_POSTGRESQL names by URL.

On PostgreSQL the tests empty the public schema; an integration test runs them so on a server of its own.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from feedback.observations import Measurement
from feedback.signals import Cause, CodeLocation, Effect, Evidence, InputLocation, ParamLocation, Signal
from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import (
    Campaign,
    CampaignSpec,
    CampaignState,
    Change,
    Experiment,
    Hypothesis,
    ModelCall,
    ModelUse,
    NoiseUnits,
    Prediction,
    Proposal,
    Reservation,
    State,
    now,
)
from infra_agent.errors import AlreadyRecorded, NotFound, StoreUnavailable, WrongUse
from infra_agent.store import Ledger, Store, StoredArtefact, database, new_id, open_store

POSTGRESQL = os.environ.get("INFRA_AGENT_TEST_POSTGRESQL", "")
sqlite_only = pytest.mark.skipif(bool(POSTGRESQL), reason="about SQLite's file")


@pytest.fixture
def url(tmp_path: Path) -> str:
    if not POSTGRESQL:
        return f"sqlite:///{tmp_path}/store.db"
    engine = create_engine(POSTGRESQL)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return POSTGRESQL


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as store:
        yield store


@pytest.fixture
def ledger(store: Store) -> Iterator[Ledger]:
    with store.transaction() as ledger:
        yield ledger


def campaign(id: str | None = None) -> Campaign:
    return Campaign(
        id=id or new_id("cmp"),
        spec=CampaignSpec(target="targets/tinyserve", seed=7),
        target_name="tinyserve",
        target_toml='name = "tinyserve"\n',
        source_commit="s0",
        base_commit="b0",
        host_fingerprint="host",
    )


EFFECT = Effect(
    metric="output_throughput",
    direction="maximize",
    baseline=100.0,
    measured=120.0,
    ratio=1.2,
    ratio_lo=1.1,
    ratio_hi=math.inf,
    confidence=0.95,
    method="t over pairs",
    n_units=6,
    n_observations=48,
    floor=0.01,
    floor_known=True,
)
SIGNALS = (
    Signal(
        rule_id="performance.bench_delta",
        level="note",
        finding="better",
        message="output throughput rose 20 % — naïve “quotes”",
        locations=(
            ParamLocation(name="threads", value=4, was=None),
            CodeLocation(file="src/a.py", line=3),
            InputLocation(condition={"seed": 1, "stream": True, "scale": 1.0}),
        ),
        effect=EFFECT,
        causes=(Cause(text="fewer copies", refutable_by="count them"),),
        next=("try 8 threads",),
        evidence=(Evidence(artefact="slices.json"),),
        role="objective",
    ),
    Signal(
        rule_id="stability.crash",
        level="warning",
        finding="abstained",
        message="no log",
        locations=(CodeLocation(file="x"),),
        reason="no log was kept",
    ),
)


def experiment(owner: Campaign, number: int = 0, state: State = State.RUNNING) -> Experiment:
    return Experiment(
        id=new_id("exp"),
        campaign_id=owner.id,
        number=number,
        role="change",
        state=state,
        proposal=Proposal(
            hypothesis=Hypothesis(
                claim="more threads help",
                mechanism="idle cores",
                location="threads",
                predicted=Prediction(metric="output_throughput", direction="up", low=0.1),
                falsifier="no idle cores",
            ),
            change=Change(knobs={"threads": 4, "flash": True, "scale": 1.0, "mode": "a", "gone": None}),
            probe="load",
        ),
        parent_commit="b0",
        started_at=now(),
    )


def outcome(running: Experiment) -> Experiment:
    return running.model_copy(
        update={
            "state": State.COMPLETE,
            "commit": "c1",
            "patch": "diff --git a/x b/x\n",
            "verdict": Verdict(kind=VerdictKind.ACCEPT, reasons=("faster", "all guardrails held"), commit="c1"),
            "signals": SIGNALS,
            "effects": (EFFECT,),
            "confirmed": True,
            "run_directory": "runs/1",
            "finished_at": now(),
            "sandbox_s": 12.5,
        }
    )


def samples(count: int = 8) -> list[Measurement]:
    return [
        Measurement(probe="load", metric="slice_time_s", value=i / 7, arm="baseline", pair=i // 4, position=i % 4)
        for i in range(count)
    ]


def artefacts() -> list[StoredArtefact]:
    return [
        StoredArtefact(path=path, format="text", probe="load", arm=None, sha256="ab" * 32, size_bytes=3)
        for path in ("b.txt", "a.txt")
    ]


def add(ledger: Ledger, number: int = 0) -> Experiment:
    """An experiment that is running, in a campaign of its own."""
    owner = campaign()
    ledger.add_campaign(owner)
    running = experiment(owner, number)
    ledger.add_experiment(running)
    return running


def test_campaign_is_read_back_as_it_was(ledger: Ledger) -> None:
    script = (Proposal(hypothesis=Hypothesis(claim="c"), change=Change(patch="a\r\n", knobs={"threads": None})),)
    stored = campaign().model_copy(update={"script": script})
    ledger.add_campaign(stored)
    assert ledger.campaign(stored.id) == stored
    ledger.update_campaign(stored.model_copy(update={"script": ()}))
    assert ledger.campaign(stored.id).script == script


def test_updated_campaign_is_read_back(ledger: Ledger) -> None:
    stored = campaign()
    ledger.add_campaign(stored)
    stopped = stored.model_copy(
        update={
            "state": CampaignState.STOPPED,
            "stop_reason": "enough",
            "finished_at": now(),
            "elapsed_s": 3.5,
        }
    )
    ledger.update_campaign(stopped)
    assert ledger.campaign(stored.id) == stopped


def test_update_of_an_unknown_campaign_is_refused(ledger: Ledger) -> None:
    with pytest.raises(NotFound, match="cmp_x"):
        ledger.update_campaign(campaign("cmp_x"))


def test_campaigns_come_newest_first_and_latest_is_the_first(ledger: Ledger) -> None:
    stored = [campaign() for _ in range(3)]
    for one in stored:
        ledger.add_campaign(one)
    assert ledger.campaigns() == tuple(reversed(stored))
    assert ledger.campaign("latest") == stored[-1]


@pytest.mark.parametrize("part", ["cmp_ab", "abcd", "cd"])
def test_campaign_is_found_by_an_unambiguous_start_or_end(ledger: Ledger, part: str) -> None:
    for id in ("cmp_abcd", "cmp_xyz", "cmp_xyzz"):
        ledger.add_campaign(campaign(id))
    assert ledger.campaign(part).id == "cmp_abcd"
    assert ledger.campaign("cmp_xyz").id == "cmp_xyz"


@pytest.mark.parametrize("part", ["", "%", "c_p", "nothing", "bc"])
def test_campaign_that_nothing_matches_is_not_found(ledger: Ledger, part: str) -> None:
    ledger.add_campaign(campaign("cmp_abcd"))
    with pytest.raises(NotFound, match="infra-agent list"):
        ledger.campaign(part)


def test_ambiguous_campaign_is_refused_with_its_matches(ledger: Ledger) -> None:
    for id in ("cmp_a1", "cmp_a2"):
        ledger.add_campaign(campaign(id))
    with pytest.raises(NotFound, match=r"2 campaigns match 'cmp_a' \(cmp_a2, cmp_a1"):
        ledger.campaign("cmp_a")


def test_latest_without_campaigns_is_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.campaign("latest")


def test_experiment_is_read_back_as_it_was(ledger: Ledger) -> None:
    running = add(ledger)
    assert ledger.experiment(running.id) == running
    read = ledger.experiment(running.id).proposal.change.knobs
    assert [(name, type(value)) for name, value in read.items()] == [
        (name, type(value)) for name, value in running.proposal.change.knobs.items()
    ]


def test_experiment_without_prediction_or_verdict_is_read_back(ledger: Ledger) -> None:
    running = add(ledger)
    proposal = Proposal(hypothesis=Hypothesis(claim="x"), change=Change(patch="diff"))
    bare = experiment(campaign(running.campaign_id), 1).model_copy(update={"proposal": proposal})
    ledger.add_experiment(bare)
    assert ledger.experiment(bare.id) == bare


def test_experiments_come_by_number(ledger: Ledger) -> None:
    owner = campaign()
    ledger.add_campaign(owner)
    for number in (2, 0, 1):
        ledger.add_experiment(experiment(owner, number))
    add(ledger)
    assert [e.number for e in ledger.experiments(owner.id)] == [0, 1, 2]
    assert ledger.experiments("cmp_none") == ()


def test_finished_experiment_is_read_back_with_samples_and_artefacts(ledger: Ledger) -> None:
    done = outcome(add(ledger))
    ledger.finish_experiment(done, samples(), artefacts())
    assert ledger.experiments(done.campaign_id) == (done,)
    assert ledger.samples(done.id) == tuple(samples())
    assert ledger.artefacts(done.id) == tuple(reversed(artefacts()))


def test_the_same_content_in_another_experiment_is_one_artefact(ledger: Ledger) -> None:
    for done in (outcome(add(ledger)), outcome(add(ledger))):
        ledger.finish_experiment(done, artefacts=artefacts())
        assert len(ledger.artefacts(done.id)) == 2


def test_a_sample_that_is_not_a_number_survives(ledger: Ledger) -> None:
    done = outcome(add(ledger))
    odd = [s.model_copy(update={"value": v}) for s, v in zip(samples(2), (math.nan, math.inf), strict=True)]
    ledger.finish_experiment(done, odd)
    read = [s.value for s in ledger.samples(done.id)]
    assert math.isnan(read[0])
    assert read[1] == math.inf


def test_update_replaces_fields_hypothesis_and_signals(ledger: Ledger) -> None:
    running = add(ledger)
    ledger.update_experiment(running.model_copy(update={"signals": SIGNALS}))
    hypothesis = running.proposal.hypothesis.model_copy(update={"claim": "another", "predicted": None})
    changed = running.model_copy(
        update={
            "state": State.FAILED,
            "signals": SIGNALS[:1],
            "proposal": running.proposal.model_copy(update={"hypothesis": hypothesis}),
        }
    )
    ledger.update_experiment(changed)
    assert ledger.experiment(running.id) == changed


def test_a_failed_experiment_may_run_again_and_finish(ledger: Ledger) -> None:
    running = add(ledger)
    ledger.update_experiment(running.model_copy(update={"state": State.FAILED}))
    ledger.update_experiment(running)
    ledger.finish_experiment(outcome(running))
    assert ledger.experiment(running.id).state is State.COMPLETE


def test_finished_experiment_never_changes(ledger: Ledger) -> None:
    running = add(ledger)
    done = outcome(running)
    ledger.finish_experiment(done, samples(), artefacts())
    other = done.model_copy(update={"confirmed": False, "signals": ()})
    with pytest.raises(AlreadyRecorded, match="its outcome never changes"):
        ledger.update_experiment(running)
    with pytest.raises(AlreadyRecorded):
        ledger.finish_experiment(other, samples(3), artefacts())
    assert ledger.experiment(done.id) == done
    assert ledger.samples(done.id) == tuple(samples())
    assert len(ledger.artefacts(done.id)) == 2


def test_an_outcome_needs_a_finished_state_and_finish(ledger: Ledger) -> None:
    running = add(ledger)
    with pytest.raises(ValueError, match="only complete or pruned"):
        ledger.finish_experiment(running)
    with pytest.raises(ValueError, match="use finish_experiment"):
        ledger.update_experiment(outcome(running))


def test_unknown_experiment_is_not_found(ledger: Ledger) -> None:
    unknown = experiment(campaign())
    with pytest.raises(NotFound):
        ledger.update_experiment(unknown)
    with pytest.raises(NotFound):
        ledger.finish_experiment(outcome(unknown))
    with pytest.raises(NotFound):
        ledger.experiment(unknown.id)


def test_experiment_number_is_unique_within_its_campaign(store: Store) -> None:
    with store.transaction() as ledger:
        first = add(ledger, 3)
    second = experiment(campaign(first.campaign_id), 3)
    with pytest.raises(AlreadyRecorded, match="already recorded"), store.transaction() as ledger:
        ledger.add_experiment(second)
    with store.transaction() as ledger:
        assert ledger.experiments(first.campaign_id) == (first,)
        add(ledger, 3)


def test_experiment_of_an_unknown_campaign_is_refused(store: Store) -> None:
    with pytest.raises(NotFound, match="is not stored"), store.transaction() as ledger:
        ledger.add_experiment(experiment(campaign()))


def call(owner: str, request_hash: str = "h1", response: str = "{}") -> ModelCall:
    return ModelCall(
        campaign_id=owner,
        request_hash=request_hash,
        model="m",
        request='{"a": 1}',
        response=response,
        prompt_tokens=10,
        completion_tokens=20,
        duration_s=1.5,
    )


def test_model_call_is_recorded_once_and_the_first_answer_stands(ledger: Ledger) -> None:
    owner = add(ledger).campaign_id
    first = call(owner)
    assert ledger.record_model_call(first) == first
    assert ledger.record_model_call(call(owner, response='{"late": true}')) == first
    second = ledger.record_model_call(call(owner, "h2"))
    assert ledger.model_calls(owner) == (first, second)
    assert ledger.model_call(owner, "h1") == first
    assert ledger.model_call(owner, "h3") is None
    assert ledger.model_call("cmp_other", "h1") is None


def reservation(owner: str, **fields: object) -> Reservation:
    known = {
        "campaign_id": owner, "request_hash": "h1", "model": "m", "reserved_prompt_tokens": 100,
        "reserved_completion_tokens": 50, "prompt_tokens": 100, "completion_tokens": 50, "nanodollars": 2**40,
    }  # fmt: skip
    return Reservation.model_validate(known | fields)


def test_reservations_are_kept_in_order_and_closed_once(ledger: Ledger) -> None:
    owner = add(ledger).campaign_id
    first, second = (ledger.add_reservation(reservation(owner, request_hash=h)) for h in ("h1", "h1"))
    assert 0 < first.id < second.id
    assert ledger.reservations(owner) == (first, second)
    settled = first.model_copy(update={"state": "settled", "prompt_tokens": 90, "cached_tokens": 60, "nanodollars": 7})
    ledger.close_reservation(settled)
    with pytest.raises(AlreadyRecorded, match="what it cost never changes"):
        ledger.close_reservation(settled.model_copy(update={"nanodollars": 0}))
    with pytest.raises(ValueError, match="settling or releasing"):
        ledger.close_reservation(second)
    assert ledger.reservations(owner) == (settled, second)
    assert ledger.reservations("cmp_other") == ()


def test_the_use_of_models_counts_open_reservations_and_no_released_ones(ledger: Ledger) -> None:
    owner = add(ledger).campaign_id
    assert ledger.model_use(owner) == ModelUse()
    ledger.add_reservation(reservation(owner))
    ledger.add_reservation(reservation(owner, state="released", prompt_tokens=0, completion_tokens=0, nanodollars=0))
    ledger.add_reservation(reservation(owner, state="settled", is_estimated=False, cached_tokens=30, nanodollars=None))
    use = ledger.model_use(owner)
    assert (use.n_calls, use.n_open, use.n_estimated, use.n_unpriced) == (2, 1, 1, 1)
    assert (use.tokens, use.cached_tokens, use.estimated_tokens, use.nanodollars) == (300, 30, 150, 2**40)
    assert (use.unpriced_prompt_tokens, use.unpriced_completion_tokens) == (100, 50)
    assert use.dollars == pytest.approx(1099.511627776)


def test_a_reservation_of_no_campaign_is_refused(store: Store) -> None:
    with pytest.raises(NotFound, match="is not stored"), store.transaction() as ledger:
        ledger.add_reservation(reservation("cmp_none"))


def noise(age: timedelta, units: tuple[float, ...], metric: str = "slice_time_s") -> NoiseUnits:
    return NoiseUnits(
        host_fingerprint="host",
        target_name="tinyserve",
        probe="load",
        metric=metric,
        direction="minimize",
        units=units,
        measured_at=now() - age,
    )


def test_noise_units_are_pooled_until_they_age(ledger: Ledger) -> None:
    day = timedelta(days=1)
    recent, old = noise(day, (0.01, -0.02)), noise(9 * day, (0.5,))
    for units in (recent, old, noise(timedelta(), (0.03,)), noise(day, (9.0,), "another metric")):
        ledger.add_noise_units(units)
    pooled = ledger.noise_units("host", "tinyserve", "load", "slice_time_s", 7 * day)
    assert pooled == recent.model_copy(update={"units": (0.01, -0.02, 0.03)})
    everything = ledger.noise_units("host", "tinyserve", "load", "slice_time_s", 30 * day)
    assert everything is not None
    assert everything.units == (0.5, 0.01, -0.02, 0.03)
    assert ledger.noise_units("another host", "tinyserve", "load", "slice_time_s", 7 * day) is None


def test_noise_units_are_forgotten_of_one_metric_on_one_host(ledger: Ledger) -> None:
    day = timedelta(days=1)
    for units in (noise(9 * day, (0.5, 0.6)), noise(timedelta(), (0.1,)), noise(timedelta(), (9.0,), "another metric")):
        ledger.add_noise_units(units)
    assert ledger.forget_noise_units("another host", "tinyserve", "load", "slice_time_s") == 0
    assert ledger.forget_noise_units("host", "tinyserve", "load", "slice_time_s") == 3
    assert ledger.noise_units("host", "tinyserve", "load", "slice_time_s", 30 * day) is None
    assert ledger.noise_units("host", "tinyserve", "load", "another metric", day) is not None


def test_the_same_noise_units_are_stored_once(ledger: Ledger) -> None:
    units = noise(timedelta(), (0.01, 0.02))
    ledger.add_noise_units(units)
    ledger.add_noise_units(units)
    assert ledger.noise_units("host", "tinyserve", "load", "slice_time_s", timedelta(days=1)) == units


def test_noise_units_of_another_direction_are_left_out(ledger: Ledger) -> None:
    ledger.add_noise_units(noise(timedelta(hours=1), (0.5,)).model_copy(update={"direction": "maximize"}))
    newest = noise(timedelta(), (0.1,))
    ledger.add_noise_units(newest)
    assert ledger.noise_units("host", "tinyserve", "load", "slice_time_s", timedelta(days=1)) == newest


def test_events_follow_each_other_and_are_read_after_an_id(ledger: Ledger) -> None:
    owner, other = add(ledger).campaign_id, add(ledger).campaign_id
    first = ledger.add_event(owner, "started")
    ledger.add_event(other, "started")
    second = ledger.add_event(owner, "measured", {"number": 1, "gain": math.nan, "at": now(), "of": ["x"]})
    assert 0 < first.id < second.id
    assert ledger.events(owner)[0] == first
    (read,) = ledger.events(owner, after=first.id)
    assert (read.id, read.created_at) == (second.id, second.created_at)
    assert read.data["gain"] is None
    assert (read.data["number"], read.data["of"]) == (1, ["x"])
    assert ledger.events(owner, after=second.id) == ()


def test_times_are_utc_and_aware_whatever_zone_they_came_in(ledger: Ledger) -> None:
    moment = datetime(2026, 3, 29, 3, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    stored = campaign().model_copy(update={"created_at": moment})
    ledger.add_campaign(stored)
    read = ledger.campaign(stored.id).created_at
    assert read == moment
    assert read.utcoffset() == timedelta()
    assert read.replace(tzinfo=UTC).hour == 1


def test_a_time_without_zone_is_refused(store: Store) -> None:
    naive = campaign().model_copy(update={"created_at": datetime(2026, 1, 1)})
    with pytest.raises(ValueError, match="no time zone"), store.transaction() as ledger:
        ledger.add_campaign(naive)


def test_text_with_a_nul_character_is_stored(ledger: Ledger) -> None:
    stored = campaign().model_copy(update={"stop_reason": "a\0b"})
    ledger.add_campaign(stored)
    assert ledger.campaign(stored.id).stop_reason in ("a\0b", "a�b")
    running = add(ledger)
    ledger.update_experiment(running.model_copy(update={"patch": "a\0b"}))


def test_a_block_that_raises_stores_nothing(store: Store) -> None:
    with contextlib.suppress(KeyError), store.transaction() as ledger:
        ledger.add_campaign(campaign())
        raise KeyError
    with store.transaction() as ledger:
        assert ledger.campaigns() == ()


def test_a_read_only_block_reads_and_does_not_write(store: Store) -> None:
    with store.transaction() as ledger:
        stored = add(ledger)
    with store.transaction(read_only=True) as ledger:
        assert ledger.experiment(stored.id) == stored
    with pytest.raises(StoreUnavailable), store.transaction(read_only=True) as ledger:
        ledger.add_campaign(campaign())
    with store.transaction() as ledger:
        ledger.add_campaign(campaign())


def test_a_reader_neither_waits_for_a_writer_nor_sees_its_half(store: Store) -> None:
    with store.transaction() as writer:
        writer.add_campaign(campaign())
        with store.transaction(read_only=True) as reader:
            assert reader.campaigns() == ()


@sqlite_only
def test_sqlite_settings_hold_on_every_connection(store: Store) -> None:
    expected = {"journal_mode": "wal", "busy_timeout": 15000, "synchronous": 1, "foreign_keys": 1}
    with store.transaction() as first, store.transaction(read_only=True) as second:
        for ledger in (first, second):
            driver = ledger._connection
            found = {name: driver.execute(text(f"PRAGMA {name}")).scalar() for name in expected}
            assert found == expected


@sqlite_only
def test_a_database_that_stays_locked_says_so(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_MS", 50)
    with open_store(url) as impatient, store.transaction() as ledger:
        ledger.add_campaign(campaign())
        with pytest.raises(StoreUnavailable, match="another process kept it locked"):
            impatient.transaction().__enter__()


@sqlite_only
def test_a_full_database_says_so_and_keeps_what_it_had(store: Store) -> None:
    with store.transaction() as ledger:
        running = add(ledger)
        pages = ledger._connection.execute(text("PRAGMA page_count")).scalar()
    full = pytest.raises(StoreUnavailable, match="the disk is full; free some space")
    with full, store.transaction() as ledger:
        ledger._connection.execute(text(f"PRAGMA max_page_count={pages}"))
        ledger.finish_experiment(outcome(running), samples(20_000))
    with store.transaction() as ledger:
        assert ledger.experiment(running.id) == running
        assert ledger.samples(running.id) == ()
        ledger._connection.execute(text("PRAGMA max_page_count=1000000"))
        ledger.finish_experiment(outcome(running), samples())


@sqlite_only
def test_a_file_that_is_no_database_is_refused_and_kept(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    path.write_text("my notes, not a database\n" * 100)
    with pytest.raises(StoreUnavailable, match="not a database; move it away"):
        open_store(url)
    assert path.read_text().startswith("my notes")


@sqlite_only
def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="choose another path"):
        open_store(f"sqlite:///{tmp_path}/file/store.db")


@sqlite_only
def test_a_directory_as_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="check that you may write"):
        open_store(f"sqlite:///{tmp_path}")


@sqlite_only
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(StoreUnavailable, match="permission denied; choose a directory"):
            open_store(f"sqlite:///{tmp_path}/store.db")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


@sqlite_only
@pytest.mark.parametrize(("kind", "accepted"), [("nfs4", False), ("ext4", True)])
def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, accepted: bool
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / nfs rw 0 0\nserver:/home {tmp_path}/shared {kind} rw 0 0\n")
    monkeypatch.setattr(database, "_MOUNTS", mounts)
    url = f"sqlite:///{tmp_path}/shared/deep/store.db"
    if accepted:
        open_store(url).close()
    else:
        with pytest.raises(StoreUnavailable, match=r"network file system \(nfs4\).*choose a local disk"):
            open_store(url)


@pytest.mark.parametrize("url", ["store.db", "mysql://localhost/x", "nonsense://x", "", "oracle:///x"])
def test_what_is_no_url_of_a_known_database_is_wrong_use(url: str) -> None:
    with pytest.raises(WrongUse, match="use sqlite:///PATH"):
        open_store(url)


def test_an_unreachable_server_is_told_without_its_password() -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(StoreUnavailable, match="can't be reached") as caught:
        open_store("postgresql+psycopg://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)


def test_a_store_in_memory_works() -> None:
    with open_store("sqlite://") as store, store.transaction() as ledger:
        add(ledger)
        assert len(ledger.campaigns()) == 1
