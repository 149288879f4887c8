"""What a user can do. The CLI, and later the API and the bot, all call these."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from feedback import stats
from infra_agent import host, loop
from infra_agent.domain import Campaign, CampaignSpec, CampaignState, Event, ModelCall, NoiseUnits
from infra_agent.errors import InfraAgentError, PlatformFailed, WrongUse
from infra_agent.experiment import NOISE_MAX_AGE, Lab, measure_noise
from infra_agent.journal import Journal
from infra_agent.loop import Desk
from infra_agent.packages import ensure_packages
from infra_agent.planner.build import build_planner
from infra_agent.probes import Site
from infra_agent.settings import Settings
from infra_agent.store import ArtefactFiles, Store, campaign_lock, new_id, open_store
from infra_agent.target import TargetSpec, load_target, parse_target
from sandboxes.sandbox import SandboxError
from sandboxes.workspace import Repository, SourceDirty, WorkspaceError

Watch = Callable[[Event], None]
Say = Callable[[str], None]


class Ran(NamedTuple):
    """A campaign that came to its end."""

    campaign: Campaign
    journal: Journal
    ended_by: str
    """budget or planner."""


def start(settings: Settings, spec: CampaignSpec) -> Campaign:
    """Validate the target, store a new campaign and its own repository; runs nothing yet.

    Raises TargetInvalid, WrongUse (dirty tree, missing programs, no planner).
    """
    directory = find_target(spec.target)
    target, text = load_target(directory)
    check_needs(target)
    build_planner(spec, settings, None)  # a planner that can't be built is wrong use, before anything is stored
    campaign_id = new_id("cmp")
    try:
        _, base, source = Repository.create(
            campaign_directory(settings, campaign_id) / "repo", directory, target.hidden
        )
    except SourceDirty as error:
        raise WrongUse(str(error)) from error
    except WorkspaceError as error:
        raise PlatformFailed(str(error)) from error
    campaign = Campaign(
        id=campaign_id,
        spec=spec.model_copy(update={"target": str(directory)}),
        target_name=target.name,
        target_toml=text,
        source_commit=source,
        base_commit=base,
        host_fingerprint=host.fingerprint(),
    )
    with open_store(settings.database_url) as store, store.transaction() as ledger:
        ledger.add_campaign(campaign)
        ledger.add_event(campaign.id, "campaign_started", {"target": target.name, "planner": spec.planner})
    return campaign


def run(settings: Settings, campaign_id: str, watch: Watch, say: Say) -> Ran:
    """Run a campaign to its end, or resume one that was cut off.

    Raises WrongUse when it is finished or another process runs it; any other failure leaves it resumable.
    """
    with ExitStack() as stack:
        store = stack.enter_context(open_store(settings.database_url))
        with store.transaction(read_only=True) as ledger:
            campaign = ledger.campaign(campaign_id)
        directory = campaign_directory(settings, campaign.id)
        stack.enter_context(campaign_lock(directory, campaign.id))
        if campaign.state is CampaignState.COMPLETE:
            raise WrongUse(f"campaign {campaign.id} is complete; see it with `infra-agent show {campaign.id}`")
        desk = _desk(settings, campaign, store, watch, say)
        try:
            ended_by, reason = loop.run_campaign(desk)
        except SandboxError as error:
            raise PlatformFailed(
                f"{error}\nNothing was recorded against a change. Continue with "
                f"`infra-agent run --resume {campaign.id}`."
            ) from error
        finally:
            _keep_time(desk)
        done = loop.close(campaign, CampaignState.COMPLETE, reason, desk.elapsed_s())
        with store.transaction() as ledger:
            ledger.update_campaign(done)
            ledger.add_event(campaign.id, "campaign_finished", {"reason": reason})
        return Ran(done, desk.journal(), ended_by)


def _keep_time(desk: Desk) -> None:
    with desk.store.transaction() as ledger:
        ledger.update_campaign(desk.campaign.model_copy(update={"elapsed_s": desk.elapsed_s()}))


def extend(settings: Settings, campaign_id: str, experiments: int | None, minutes: float | None) -> Campaign:
    """Raise a campaign's budget before it is resumed; the limits are totals, not additions."""
    with open_store(settings.database_url) as store, store.transaction() as ledger:
        campaign = ledger.campaign(campaign_id)
        given = {"experiments": experiments, "minutes": minutes}
        budget = campaign.spec.budget.model_copy(update={k: v for k, v in given.items() if v is not None})
        state = CampaignState.RUNNING if any(v is not None for v in given.values()) else campaign.state
        spec = campaign.spec.model_copy(update={"budget": budget})
        campaign = campaign.model_copy(update={"spec": spec, "state": state})
        ledger.update_campaign(campaign)
        return campaign


def _desk(settings: Settings, campaign: Campaign, store: Store, watch: Watch, say: Say) -> Desk:
    spec = parse_target(campaign.target_toml, f"{campaign.spec.target}/target.toml")
    directory = campaign_directory(settings, campaign.id)
    with store.transaction(read_only=True) as ledger:
        journal = Journal(experiments=ledger.experiments(campaign.id))
        noise = _noise(ledger.noise_units, campaign.host_fingerprint, spec)
    lab = make_lab(settings, spec, Repository(directory / "repo"), directory / "runs", noise, say)
    return Desk(
        campaign=campaign,
        store=store,
        artefacts=ArtefactFiles(settings.home / "artefacts"),
        planner=build_planner(campaign.spec, settings, StoredCalls(store, campaign.id)),
        lab=lab,
        on_event=watch,
        started_s=time.monotonic(),
    )


def _noise(find: Callable[..., NoiseUnits | None], fingerprint: str, spec: TargetSpec) -> NoiseUnits | None:
    return find(fingerprint, spec.name, spec.objective.probe, spec.objective.metric, NOISE_MAX_AGE)


def make_lab(
    settings: Settings, spec: TargetSpec, repository: Repository, runs: Path, noise: NoiseUnits | None, say: Say
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
    units: tuple[float, ...]
    floor: stats.NoiseFloor
    minimum_detectable_effect: float
    """Smallest true gain found with 90 % probability at the last look of the first measurement."""


def calibrate(settings: Settings, target: str, pairs: int, say: Say) -> Calibration:
    """Measure A/A pairs of the target's objective and store them as this host's noise floor."""
    directory = find_target(target)
    spec, _ = load_target(directory)
    check_needs(spec)
    work = campaign_directory(settings, new_id("cal"))
    try:
        return _calibrate(settings, spec, directory, work, pairs, say)
    except SourceDirty as error:
        raise WrongUse(str(error)) from error
    except SandboxError as error:
        raise PlatformFailed(str(error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _calibrate(
    settings: Settings, spec: TargetSpec, directory: Path, work: Path, pairs: int, say: Say
) -> Calibration:
    repository, base, _ = Repository.create(work / "repo", directory, spec.hidden)
    lab = make_lab(settings, spec, repository, work / "runs", None, say)
    units = measure_noise(lab, base, pairs, host.fingerprint())
    with open_store(settings.database_url) as store, store.transaction() as ledger:
        ledger.add_noise_units(units)
        known = _noise(ledger.noise_units, units.host_fingerprint, spec) or units
    if len(known.units) < stats.MIN_FLOOR_UNITS:
        raise InfraAgentError(
            f"{len(known.units)} pairs stored; a noise floor needs {stats.MIN_FLOOR_UNITS}: run calibrate again"
        )
    floor = stats.noise_floor(known.units)
    probe = lab.objective_probe()
    rule = stats.Rule(spec.objective.direction, probe.looks, 0.05, floor.value, spec.objective.min_effect)
    return Calibration(spec, known.units, floor, stats.minimum_detectable_effect(floor.sd, rule))


def campaigns(settings: Settings) -> tuple[Campaign, ...]:
    """All campaigns, oldest first."""
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        return ledger.campaigns()


def campaign(settings: Settings, campaign_id: str) -> tuple[Campaign, Journal]:
    """A campaign by id, unique prefix or `latest`, with its journal. Raises NotFound."""
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        found = ledger.campaign(campaign_id)
        return found, Journal(experiments=ledger.experiments(found.id))


def campaign_directory(settings: Settings, campaign_id: str) -> Path:
    """Where a campaign's repository and runs lie."""
    return settings.home / "campaigns" / campaign_id


def result_patch(settings: Settings, found: Campaign, journal: Journal) -> str:
    """The diff from the original to the campaign's best commit; empty when nothing was accepted."""
    best = journal.best_commit(found.base_commit)
    if best == found.base_commit:
        return ""
    return Repository(campaign_directory(settings, found.id) / "repo").diff(found.base_commit, best)


def find_target(name: str) -> Path:
    """A target's directory by its path or by the name of a shipped one. Raises WrongUse."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    shipped = {p.name: p for p in shipped_targets()}
    if name in shipped:
        return shipped[name]
    raise WrongUse(f"{name} is neither a directory nor a shipped target; shipped are: {', '.join(sorted(shipped))}")


def shipped_targets() -> list[Path]:
    """The targets that come with infra-agent: in the wheel beside this module, in a checkout beside the package."""
    here = Path(__file__).resolve().parent
    for root in (here / "shipped_targets", here.parent / "targets"):
        if root.is_dir():
            return sorted(p for p in root.iterdir() if (p / "target.toml").is_file())
    return []


def check_needs(spec: TargetSpec) -> None:
    """Raises WrongUse when a program that the target needs is missing."""
    missing = [program for program in spec.needs if shutil.which(program) is None]
    if missing:
        raise WrongUse(
            f"target {spec.name} needs {', '.join(missing)} on the PATH; install it (Debian: apt-get install "
            "build-essential), then run the command again"
        )
