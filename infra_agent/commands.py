"""What a user can do. The CLI, and later the API and the bot, all call these."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from feedback.observations import RuntimeEvent, Scalar
from feedback.readers.run import read
from infra_agent import ending, host, lessons, loop, report
from infra_agent.bench import Site
from infra_agent.budgets import StoredSpending, check_accelerators, raised, with_running_time
from infra_agent.catalogue import check_needs, find_script, find_target
from infra_agent.desk import Desk
from infra_agent.dialogue import Dialogue
from infra_agent.domain import Campaign, CampaignSpec, CampaignState, Event, ModelCall, NoiseUnits
from infra_agent.errors import InfraAgentError, PlatformFailed, TargetInvalid, WrongUse
from infra_agent.journal import Journal
from infra_agent.lab import Lab
from infra_agent.launch import read_knobs
from infra_agent.leftovers import temporary_files
from infra_agent.noise import NOISE_MAX_AGE, NOISE_RUN, measure_noise
from infra_agent.packages import ensure_packages
from infra_agent.planner import Planner
from infra_agent.planner.build import build_planner, scripted_proposals
from infra_agent.planner.external import ExternalPlanner
from infra_agent.pulse import beating, last_beat_s
from infra_agent.recording import Session, write
from infra_agent.recording.redaction import redaction
from infra_agent.request import check_parallel
from infra_agent.settings import Settings
from infra_agent.store import ArtefactFiles, Store, campaign_lock, is_locked, new_id, open_store
from infra_agent.target import FILE_NAME, TargetSpec, load_target, parse_target
from sandboxes.files import advice, refusal
from sandboxes.git import WorkspaceError
from sandboxes.results import Run
from sandboxes.sandbox import SandboxError
from sandboxes.source import SourceRefused
from sandboxes.workspace import Repository, RepositoryLost

Watch = Callable[[Event], None]
Say = Callable[[str], None]


RUN_PULSE = "run.pulse"
"""In a campaign's directory, while it runs: the wall time of all its runs."""


class Ran(NamedTuple):
    """A campaign that came to its end."""

    campaign: Campaign
    journal: Journal
    ended_by: str
    """budget, planner, or waiting: for someone outside who says what comes next."""


def start(settings: Settings, spec: CampaignSpec) -> Campaign:
    """Validate the target and the planner, store a new campaign and its own repository; runs nothing yet.

    Raises TargetInvalid, WrongUse (dirty tree, missing programs, no planner, a script that can't be used).
    """
    directory = find_target(spec.target)
    target, text = load_target(directory)
    check_needs(target)
    if reason := target.refusal(read_knobs(directory, target)):
        raise TargetInvalid(f"{directory}: the launch file is outside the knobs' own domains: {reason}")
    planner = find_script(spec.planner, directory)
    spec = spec.model_copy(update={"target": str(directory), "planner": planner})
    if planner in ("search", "random") and not (target.knobs or target.controls or target.moves):
        raise WrongUse(
            f"{target.name} declares no knobs, so a search has nothing to try: add [[knobs]] and a [launch_file] to "
            f"{directory / FILE_NAME}, or plan with --planner script:FILE or --planner llm"
        )
    check_accelerators(spec.budget, target)
    check_parallel(spec)
    script = scripted_proposals(planner, target)
    build_planner(spec, settings, script)  # one that can't be built is wrong use, before anything is stored
    campaign_id = new_id("cmp")
    try:
        _, base, source = Repository.create(
            campaign_directory(settings, campaign_id) / "repo", directory, target.unseen
        )
    except SourceRefused as error:
        raise WrongUse(str(error)) from error
    except WorkspaceError as error:
        raise PlatformFailed(str(error)) from error
    campaign = Campaign(
        id=campaign_id,
        spec=spec,
        target_name=target.name,
        target_toml=text,
        source_commit=source,
        base_commit=base,
        host_fingerprint=host.fingerprint(),
        script=script,
    )
    with open_store(settings.database_url) as store, store.transaction() as ledger:
        ledger.add_campaign(campaign)
        place = lessons.here(target, campaign.host_fingerprint)
        ledger.tell_lessons(campaign.id, lessons.kept(ledger.lessons(), place))
        ledger.add_event(campaign.id, "campaign_started", {"target": target.name, "planner": spec.planner})
    return campaign


def run(settings: Settings, campaign_id: str, watch: Watch, say: Say, planner: Planner | None = None) -> Ran:
    """Run a campaign to its end or until it waits for an outside planner, or resume one that was stopped or cut off.
    `planner` stands in for the campaign's own: it knows what was told.

    Raises WrongUse when it is finished, failed for good or another process runs it, and BaselineFailed when the
    unchanged target fails. Any other failure is stored as the reason why it stopped, and leaves it resumable.
    """
    with ExitStack() as stack:
        store = stack.enter_context(open_store(settings.database_url))
        with store.transaction(read_only=True) as ledger:
            campaign_id = ledger.campaign(campaign_id).id
        directory = campaign_directory(settings, campaign_id)
        stack.enter_context(campaign_lock(directory, campaign_id))
        with store.transaction(read_only=True) as ledger:  # again, now that nobody changes it
            campaign = ledger.campaign(campaign_id)
        ending.refuse_ended(campaign)
        pulse = directory / RUN_PULSE
        elapsed_s = max(campaign.elapsed_s, last_beat_s(pulse))  # a killed run could not store what it took
        campaign = campaign.model_copy(update={"elapsed_s": elapsed_s})
        started_s, campaign = time.monotonic(), ending.reopened(campaign)
        stack.enter_context(beating(pulse, elapsed_s))
        try:
            stack.enter_context(temporary_files(directory))
            desk = make_desk(settings, campaign, store, watch, say, started_s)
            desk = desk if planner is None else desk._replace(planner=planner)
            with store.transaction() as ledger:
                ledger.update_campaign(campaign)
            ended_by, reason = loop.run_campaign(desk)
            if isinstance(desk.planner, ExternalPlanner):
                desk.planner.finish(desk.journal(), "" if ended_by == loop.WAITING else reason)
        except BaseException as error:
            ended = ending.keep_end(store, campaign, error, campaign.elapsed_s + time.monotonic() - started_s)
            if isinstance(error, InfraAgentError | SandboxError):
                raise ending.explained(error, ended) from error
            if isinstance(error, OSError) and advice(error):  # a full disk, for one
                place = error.filename or f"a file below {settings.home} or the temporary directory"
                raise ending.explained(PlatformFailed(refusal(error, place)), ended) from error
            raise
        waits = ended_by == loop.WAITING
        state = CampaignState.WAITING if waits else CampaignState.COMPLETE
        with store.transaction() as ledger:
            # While it waits nothing is spent, nor by a call that was refused: only what measured counts.
            elapsed_s = ledger.campaign(campaign.id).elapsed_s if waits else desk.elapsed_s()
            done = ending.closed(campaign, state, "" if waits else reason, elapsed_s)
            ledger.update_campaign(done)
            ledger.add_event(campaign.id, f"campaign_{'waiting' if waits else 'finished'}", {"reason": reason})
        pulse.unlink(missing_ok=True)  # a run that failed keeps it: perhaps its time could not be stored either
        return Ran(done, desk.journal(), ended_by)


def extend(
    settings: Settings,
    campaign_id: str,
    experiments: int | None = None,
    minutes: float | None = None,
    tokens: int | None = None,
    dollars: float | None = None,
    accelerator_s: float | None = None,
    parallel: int | None = None,
) -> Campaign:
    """Raise a campaign's budget before it is resumed; the limits are totals, not additions. `parallel` may be any.

    Raises WrongUse for a total that is lower than before or spent already, for a campaign that failed, while one is
    run, and for a planner that can't be built any more; then the campaign stays as it was.
    """
    given = {
        "experiments": experiments, "minutes": minutes, "tokens": tokens, "dollars": dollars,
        "accelerator_s": accelerator_s,
    }  # fmt: skip
    with open_store(settings.database_url) as store, ExitStack() as stack:
        with store.transaction(read_only=True) as ledger:
            found = ledger.campaign(campaign_id)
        if all(limit is None for limit in given.values()) and parallel is None:
            return found
        stack.enter_context(campaign_lock(campaign_directory(settings, found.id), found.id))
        with store.transaction(read_only=True) as ledger:  # again, now that nobody changes it
            found = ledger.campaign(found.id)
            journal, used = Journal(experiments=ledger.experiments(found.id)), ledger.model_use(found.id)
        changes = journal.number_of_changes
        ending.refuse_failed(found)
        least = max(found.spec.budget.experiments, changes + (found.state is CampaignState.COMPLETE))
        if experiments is not None and experiments < least:
            raise WrongUse(f"--experiments is a total: {changes} were made, so give at least {least}")
        if minutes is not None and minutes * 60 <= found.elapsed_s:
            raise WrongUse(f"--minutes is a total: {found.elapsed_s / 60:.1f} are used, so give more")
        target = parse_target(found.target_toml, f"{found.spec.target}/{FILE_NAME}")
        journal = with_running_time(journal, campaign_directory(settings, found.id) / "runs")
        budget = raised(found.spec.budget, given, target, used, journal)
        spec = found.spec.model_copy(update={"budget": budget, "parallel": parallel or found.spec.parallel})
        check_parallel(spec)
        build_planner(spec, settings, found.script)
        found = ending.reopened(found).model_copy(update={"spec": spec})
        with store.transaction() as ledger:
            ledger.update_campaign(found)
        return found


def make_desk(settings: Settings, campaign: Campaign, store: Store, watch: Watch, say: Say, started_s: float) -> Desk:
    """All that running a campaign needs, its planner and its lab included. Raises as `make_lab` and `build_planner`."""
    spec = parse_target(campaign.target_toml, f"{campaign.spec.target}/target.toml")
    directory = campaign_directory(settings, campaign.id)
    with store.transaction(read_only=True) as ledger:
        noise = _noise(ledger.noise_units, campaign.host_fingerprint, spec)
        told = ledger.told_lessons(campaign.id)
    lab = make_lab(settings, spec, Repository(directory / "repo"), directory / "runs", noise, say)

    def note(text: str) -> None:
        with store.transaction() as ledger:
            event = ledger.add_event(campaign.id, "planner_note", {"text": text})
        watch(event)

    if campaign.spec.planner == "external":  # nobody tells it anything now, but a kill may have cut something off
        planner: Planner = ExternalPlanner((), Dialogue(store, campaign.id))
    else:
        book = StoredSpending(store, campaign.id)
        planner = build_planner(campaign.spec, settings, campaign.script, StoredCalls(store, campaign.id), note, book)
    return Desk(
        campaign=campaign,
        store=store,
        artefacts=ArtefactFiles(settings.home / "artefacts"),
        planner=planner,
        lab=lab,
        on_event=watch,
        started_s=started_s,
        lessons=told,
    )


def _noise(find: Callable[..., NoiseUnits | None], fingerprint: str, spec: TargetSpec) -> NoiseUnits | None:
    return find(fingerprint, spec.name, spec.noise_probe, spec.objective.metric, NOISE_MAX_AGE)


def make_lab(
    settings: Settings,
    spec: TargetSpec,
    repository: Repository,
    runs: Path,
    noise: NoiseUnits | None,
    say: Say,
) -> Lab:
    """A lab for a target, with the target's packages installed. Raises PackageUnavailable."""
    directories = ensure_packages(spec.packages, settings.home, say)
    return Lab(site=Site(spec, repository, directories), runs=runs, noise=noise, say=say)


class StoredCalls:
    """The journal of model calls of one campaign: asked before a call is made, written before it is used."""

    def __init__(self, store: Store, campaign_id: str) -> None:
        self._store = store
        self._campaign_id = campaign_id

    @property
    def campaign_id(self) -> str:
        """The campaign that the calls belong to."""
        return self._campaign_id

    def recall(self, request_hash: str) -> ModelCall | None:
        """The call made earlier with exactly this request, if any."""
        with self._store.transaction(read_only=True) as ledger:
            return ledger.model_call(self._campaign_id, request_hash)

    def record(self, call: ModelCall) -> None:
        """Store a call before its answer is acted on."""
        with self._store.transaction() as ledger:
            ledger.record_model_call(call)


class Calibration(NamedTuple):
    """What a baseline looks like against itself on this host."""

    target: TargetSpec
    given: str
    """The target as the user named it."""
    units: tuple[float, ...]
    """ln(second arm / first) of each A/A pair known, those of earlier calibrations and baselines included."""
    events: tuple[RuntimeEvent, ...]
    """One of each pair begun in this calibration: whether it was quiet, repeated, or kept although it was not."""


CALIBRATION_PORTION = 5
"""Pairs after which a calibration is stored, so that an interruption loses little."""


def calibrate(settings: Settings, target: str, pairs: int, fresh: bool, say: Say) -> Calibration:
    """Measure A/A pairs of the target's objective and store them as this host's noise floor. With `fresh` those
    known before are forgotten once the first new ones are there."""
    directory = find_target(target)
    spec, _ = load_target(directory)
    check_needs(spec)
    work = campaign_directory(settings, new_id("cal"))
    failed = False
    try:
        units, events = _calibrate(settings, spec, directory, work, pairs, fresh, say)
        return Calibration(spec, target, units, events)
    except InfraAgentError:
        failed = True  # the message may name the logs
        raise
    except SourceRefused as error:
        raise WrongUse(str(error)) from error
    except SandboxError as error:
        raise PlatformFailed(str(error)) from error
    finally:
        if not failed:
            shutil.rmtree(work, ignore_errors=True)


def _calibrate(
    settings: Settings, spec: TargetSpec, directory: Path, work: Path, pairs: int, fresh: bool, say: Say
) -> tuple[tuple[float, ...], tuple[RuntimeEvent, ...]]:
    repository, base, _ = Repository.create(work / "repo", directory, spec.unseen)
    lab = make_lab(settings, spec, repository, work / "runs", None, say)
    fingerprint, done = host.fingerprint(), 0
    events: list[RuntimeEvent] = []
    with open_store(settings.database_url) as store:
        while done < pairs:
            portion = min(CALIBRATION_PORTION, pairs - done)
            shutil.rmtree(work / "runs", ignore_errors=True)
            units = measure_noise(lab, base, portion, fingerprint)
            found = read(Run.load(work / "runs" / NOISE_RUN))
            events += [o for o in found if isinstance(o, RuntimeEvent) and o.source == "contention"]
            with store.transaction() as ledger:
                if fresh and not done:
                    metric = spec.objective.metric
                    forgotten = ledger.forget_noise_units(fingerprint, spec.name, spec.noise_probe, metric)
                    say(f"{forgotten} A/A pairs measured earlier are forgotten")
                ledger.add_noise_units(units)
                known = _noise(ledger.noise_units, fingerprint, spec) or units
            done += portion
            say(f"{done} of {pairs} pairs measured and stored")
    return known.units, tuple(events)


def campaigns(settings: Settings) -> tuple[tuple[Campaign, Journal], ...]:
    """All campaigns with their journals, newest first."""
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        found = [(_as_it_is(settings, c), ledger.experiments(c.id)) for c in ledger.campaigns()]
    return tuple((c, Journal(experiments=experiments)) for c, experiments in found)


def campaign(settings: Settings, campaign_id: str) -> tuple[Campaign, Journal]:
    """A campaign by id, unique prefix or `latest`, with its journal. Raises NotFound."""
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        found = ledger.campaign(campaign_id)
        return _as_it_is(settings, found), Journal(experiments=ledger.experiments(found.id))


def _as_it_is(settings: Settings, campaign: Campaign) -> Campaign:
    """A killed run could not store its end: what is stored as running and run by no process was interrupted."""
    directory = campaign_directory(settings, campaign.id)
    # Where several machines share a database, only the one that has the campaign's directory can tell.
    if campaign.state is CampaignState.RUNNING and directory.is_dir() and not is_locked(directory, campaign.id):
        return campaign.model_copy(update={"state": CampaignState.INTERRUPTED})
    return campaign


def result(settings: Settings, campaign_id: str) -> report.Report:
    """What a campaign has found so far, or in the end. Where its repository is lost, what the database holds, with
    a warning. Raises NotFound, PlatformFailed."""
    found, journal = campaign(settings, campaign_id)
    spec = parse_target(found.target_toml, f"{found.spec.target}/target.toml")
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        noise, models = _noise(ledger.noise_units, found.host_fingerprint, spec), ledger.model_use(found.id)
        calls = [report.CallUse(*use) for use in ledger.call_uses(found.id)]
    cores = len(host.cpus())
    journal = with_running_time(journal, campaign_directory(settings, found.id) / "runs")
    known = report.Result(noise=noise, cores=cores, calls=calls, models=models)
    base, best = found.base_commit, journal.best_commit(found.base_commit)
    repository = Repository(campaign_directory(settings, found.id) / "repo")
    try:
        patch = repository.diff(base, best) if best != base else ""
        before, after = (_knobs_of(repository, commit, spec) for commit in (base, best))
    except RepositoryLost as error:
        return _without_repository(report.build(found, spec, journal, known), str(error))
    except SandboxError as error:
        raise PlatformFailed(str(error)) from error
    return report.build(found, spec, journal, known._replace(patch=patch, before=before, after=after))


def against(settings: Settings, campaign_id: str, other_id: str) -> report.Versus:
    """Two campaigns side by side at equal budgets. Raises NotFound, and WrongUse where they can't be compared."""
    found = [campaign(settings, given) for given in (campaign_id, other_id)]
    try:
        originals = [_original_tree(settings, side) for side, _ in found]
    except (RepositoryLost, SandboxError):  # then by the commit of the user's own repository
        originals = [side.source_commit for side, _ in found]
    sides = [
        report.Side(side, parse_target(side.target_toml, f"{side.spec.target}/target.toml"), journal, original)
        for (side, journal), original in zip(found, originals, strict=True)
    ]
    return report.compare(*sides)


def _original_tree(settings: Settings, found: Campaign) -> str:
    return Repository(campaign_directory(settings, found.id) / "repo").tree(found.base_commit)


def export(settings: Settings, campaign_id: str, directory: Path) -> tuple[Path, ...]:
    """Write a campaign's session into an absent or empty directory: a script that replays it and a transcript, without
    what is private to this machine; returns the files. Raises NotFound, WrongUse, PlatformFailed."""
    found, journal = campaign(settings, campaign_id)
    facts = result(settings, found.id)
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        session = Session(found, journal, facts, ledger.events(found.id), ledger.model_calls(found.id))
    return write(session, redaction(settings, found), directory)


def _without_repository(found: report.Report, warning: str) -> report.Report:
    """What can still be said: neither patch nor knobs, nor that an unmeasured control arm equals the result."""
    arms = tuple(c for c in found.comparisons if not (c.kind == "control" and c.is_identical))
    warnings = (*found.warnings, warning)
    return found.model_copy(update={"comparisons": arms, "warnings": warnings, "next": ()})


def _knobs_of(repository: Repository, commit: str, spec: TargetSpec) -> dict[str, Scalar | None]:
    if not spec.knobs:
        return {}
    with tempfile.TemporaryDirectory(prefix="ia-") as tree:
        repository.checkout(commit, Path(tree))
        return read_knobs(Path(tree), spec)


def campaign_directory(settings: Settings, campaign_id: str) -> Path:
    """Where a campaign's repository and runs lie."""
    return settings.home / "campaigns" / campaign_id
