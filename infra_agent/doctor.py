"""What works on this machine: everything a campaign needs, tried rather than guessed."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from feedback.stats import MIN_FLOOR_UNITS
from feedback.wording import count
from infra_agent import host
from infra_agent.catalogue import shipped_targets
from infra_agent.errors import InfraAgentError, TargetInvalid
from infra_agent.noise import NOISE_MAX_AGE
from infra_agent.settings import Settings
from infra_agent.store import open_store
from infra_agent.target import FILE_NAME, TargetSpec, parse_target
from sandboxes.bubblewrap import probe_host
from sandboxes.results import Record
from sandboxes.sandbox import SandboxError, SandboxSpec, open_sandbox

Status = Literal["ok", "warning", "failed", "absent"]
_PROGRAM_TIMEOUT_S = 10.0
_SLOW_WRITE_S = 0.2
LOAD = "load now"
_FIRST_RUN = "infra-agent run llamacpp --planner search --minutes 6"
_PROGRAMS: tuple[tuple[str, tuple[str, ...], bool, str], ...] = (
    ("git", ("git", "--version"), True, "install git (Debian: apt-get install git)"),
    ("cc", ("cc", "--version"), False, "for targets that compile: apt-get install build-essential"),
    ("make", ("make", "--version"), False, "for targets that compile: apt-get install build-essential"),
    ("valgrind", ("valgrind", "--version"), False, "counts instructions: apt-get install valgrind"),
    ("perf", ("perf", "--version"), False, "samples stacks: apt-get install linux-perf or linux-tools-generic"),
    ("py-spy", ("py-spy", "--version"), False, "samples Python stacks: pip install py-spy"),
)


class Check(Record):
    """One thing that was tried."""

    name: str
    status: Status
    """`failed` stops campaigns; `warning` makes them worse; `absent` is optional and not there."""
    detail: str
    remedy: str = ""


class Diagnosis(Record):
    """Everything that was tried. `infra-agent doctor --json` prints it."""

    can_run: bool
    """Whether a campaign can run here."""
    checks: tuple[Check, ...]


def diagnose(settings: Settings) -> Diagnosis:
    """Try everything. Makes infra-agent's home and database if they are absent; contacts the model endpoint only
    if one is configured."""
    parts: tuple[Callable[[Settings], Iterator[Check]], ...] = (
        _sandbox, _programs, _packages, _machine, _home, _database, _model,
    )  # fmt: skip
    found = (check for part in parts for check in part(settings))
    checks = tuple(c.model_copy(update={"remedy": ""}) if c.status == "ok" else c for c in found)
    return Diagnosis(can_run=not any(c.status == "failed" for c in checks), checks=checks)


def as_text(found: Diagnosis, width: int) -> str:
    """The diagnosis as a table with its remedies."""
    column = max(len(c.name) for c in found.checks)
    lines: list[str] = []
    for check in found.checks:
        head = f"{check.status:<8} {check.name:<{column}}  "
        indent = " " * len(head)
        lines += textwrap.wrap(check.detail, width, initial_indent=head, subsequent_indent=indent) or [head]
        if check.remedy and check.status != "ok":
            lines += textwrap.wrap(f"-> {check.remedy}", width, initial_indent=indent, subsequent_indent=indent + "   ")
    return "\n".join([*lines, "", *textwrap.wrap(_conclusion(found), width)])


def _conclusion(found: Diagnosis) -> str:
    if not found.can_run:
        return "Campaigns can't run here until what has failed is mended."
    if any(c.name == LOAD and c.status == "warning" for c in found.checks):
        return (
            "Campaigns can run here, but the machine is busy now. End other work first; once `infra-agent doctor` "
            f"finds the load low, try `{_FIRST_RUN}`."
        )
    return f"Campaigns can run here. Try `{_FIRST_RUN}`."


def _sandbox(settings: Settings) -> Iterator[Check]:
    probe = probe_host()
    if not probe.available:
        yield Check(name="sandbox", status="failed", detail=probe.reason, remedy=probe.remedy)
        return
    yield Check(
        name="sandbox",
        status="ok",
        detail=f"bubblewrap {probe.version or ''} ({probe.bwrap}); runs as {probe.user}; memory: "
        f"{probe.memory_limit}; processes: {probe.process_limit}",
    )
    filtered = Check(name="syscall filter", status="ok", detail="on")
    yield filtered if probe.syscall_filter else Check(
        name="syscall filter", status="warning", detail="not available for this architecture",
        remedy="run only code that you would run without a sandbox",
    )  # fmt: skip
    yield _inside()


def _inside() -> Check:
    """Run a command in a sandbox and look at its network interfaces."""
    name = "inside the sandbox"
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="ia-") as root:
            tree, scratch = Path(root) / "tree", Path(root) / "scratch"
            tree.mkdir()
            scratch.mkdir()
            sandbox = open_sandbox("bubblewrap", SandboxSpec(tree=tree, scratch=scratch))
            try:
                result = sandbox.exec(("cat", "/proc/net/dev"), timeout_s=_PROGRAM_TIMEOUT_S)
            finally:
                sandbox.close()
    except SandboxError as error:
        return Check(name=name, status="failed", detail=str(error), remedy="see the sandbox above")
    if not result.ok:
        return Check(name=name, status="failed", detail=result.describe(), remedy="see the sandbox above")
    interfaces = {line.partition(":")[0].strip() for line in result.stdout.splitlines() if ":" in line}
    if interfaces - {"lo"}:
        detail = f"the network is reachable: {', '.join(sorted(interfaces))}"
        return Check(name=name, status="failed", detail=detail, remedy="please report this as a fault")
    took = f"{1000 * (time.monotonic() - started):.0f} ms"
    return Check(name=name, status="ok", detail=f"a command ran, with no network, in {took}")


def _programs(settings: Settings) -> Iterator[Check]:
    for name, command, is_needed, remedy in _PROGRAMS:
        if shutil.which(command[0]) is None:
            status: Status = "failed" if is_needed else "absent"
            yield Check(name=name, status=status, detail="not on the PATH", remedy=remedy)
            continue
        said, works = _said(command)
        yield Check(name=name, status="ok" if works else "warning", detail=said, remedy=remedy)


def _said(command: tuple[str, ...]) -> tuple[str, bool]:
    """The first line that a program says, and whether it ended well."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_PROGRAM_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), False
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return (lines[0].strip() if lines else f"ended with status {done.returncode}"), done.returncode == 0


def _packages(settings: Settings) -> Iterator[Check]:
    found = [name for name in ("pip",) if importlib.util.find_spec(name)] + [n for n in ("uv",) if shutil.which(n)]
    if found:
        yield Check(name="package installer", status="ok", detail=" and ".join(found))
    else:
        remedy = "install pip into this environment (python -m ensurepip) for targets with packages, such as llamacpp"
        yield Check(name="package installer", status="warning", detail="neither pip nor uv", remedy=remedy)


def _machine(settings: Settings) -> Iterator[Check]:
    cpus = host.cpus()
    yield Check(
        name="machine", status="ok",
        detail=f"{host.cpu_model()}, {len(cpus)} CPUs, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, fingerprint {host.fingerprint()}",
    )  # fmt: skip
    measuring = host.measuring_cpus()
    if measuring:
        yield Check(name="measuring CPU", status="ok", detail=f"CPU {measuring[0]} is kept for measurements")
    else:
        yield Check(
            name="measuring CPU", status="warning", detail="only one CPU: the supervisor disturbs what it measures",
            remedy="use a machine with two CPUs or more",
        )  # fmt: skip
    load = os.getloadavg()[0]
    detail = f"{load:.1f} processes ran or waited on average in the last minute, on {len(cpus)} CPUs"
    if load > len(cpus) / 2:
        remedy = "end other work before you measure: intervals get wide, and little can be decided"
        yield Check(name=LOAD, status="warning", detail=detail, remedy=remedy)
    else:
        yield Check(name=LOAD, status="ok", detail=detail)


def _home(settings: Settings) -> Iterator[Check]:
    name, home = "home", settings.home
    remedy = "set INFRA_AGENT_HOME to a directory on a local disk that you may write to"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=home) as file:
            started = time.monotonic()
            file.write(b"x" * (1 << 20))
            file.flush()
            os.fsync(file.fileno())
            took = time.monotonic() - started
        free = shutil.disk_usage(home).free
    except OSError as error:
        yield Check(name=name, status="failed", detail=f"{home}: {error.strerror or error}", remedy=remedy)
        return
    detail = f"{home}: writable, 1 MiB reaches the disk in {1000 * took:.0f} ms, {free / (1 << 30):.1f} GiB free"
    slow = took > _SLOW_WRITE_S or free < 1 << 30
    yield Check(name=name, status="warning" if slow else "ok", detail=detail, remedy=remedy)


def _database(settings: Settings) -> Iterator[Check]:
    """Whether the database opens at this version's schema, which noise floors it knows for this host, and whether
    the latest campaign of each target could prove that both arms did the same work."""
    try:
        with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
            campaigns = ledger.campaigns()
            yield Check(
                name="database", status="ok",
                detail=f"{store.place}: reachable, schema up to date, {count(len(campaigns), 'campaign')}",
            )  # fmt: skip
            for spec in _targets([c.target_toml for c in campaigns]):
                objective = spec.objective
                units = ledger.noise_units(
                    host.fingerprint(), spec.name, spec.noise_probe, objective.metric, NOISE_MAX_AGE
                )
                yield _noise(spec, len(units.units) if units else 0)
                latest = next((c for c in campaigns if c.target_name == spec.name), None)
                signals = [s for e in ledger.experiments(latest.id) for s in e.signals] if latest else []
                if unproven := [s.message for s in signals if s.rule_id == "integrity.work_unproven"]:
                    yield _unproven(spec, unproven[-1])
    except InfraAgentError as error:
        remedy = "check INFRA_AGENT_DATABASE_URL and INFRA_AGENT_HOME"
        yield Check(name="database", status="failed", detail=str(error), remedy=remedy)


def _targets(used: list[str]) -> list[TargetSpec]:
    """The shipped targets and those of earlier campaigns, newest first, one of each name; without those that
    another version wrote."""
    texts = [*reversed(used), *((path / FILE_NAME).read_text(encoding="utf-8") for path in shipped_targets())]
    found = {}
    for text in texts:
        with suppress(TargetInvalid):
            spec = parse_target(text, FILE_NAME)
            found[spec.name] = spec
    return list(found.values())


def _noise(spec: TargetSpec, known: int) -> Check:
    detail = f"{known} of {MIN_FLOOR_UNITS} A/A pairs of {spec.objective.metric} known for this host"
    enough = known >= MIN_FLOOR_UNITS
    known_by_name = spec.name in {path.name for path in shipped_targets()}
    target = spec.name if known_by_name else f"DIRECTORY` of {spec.name}, as `infra-agent calibrate ."
    remedy = f"`infra-agent calibrate {target}` measures them; until then a default margin applies"
    return Check(name=f"noise, {spec.name}", status="ok" if enough else "absent", detail=detail, remedy=remedy)


def _unproven(spec: TargetSpec, message: str) -> Check:
    remedy = "let its worker answer every slice with a `check`, see docs/worker-protocol.md"
    return Check(name=f"same work, {spec.name}", status="warning", detail=f"latest campaign: {message}", remedy=remedy)


def _model(settings: Settings) -> Iterator[Check]:
    name = "model endpoint"
    if not settings.has_model:
        remedy = "for --planner llm set INFRA_AGENT_MODEL, and OPENAI_API_KEY or OPENAI_BASE_URL"
        yield Check(name=name, status="absent", detail="not configured", remedy=remedy)
        return
    # Importing the model's client takes longer than everything else here.
    from infra_agent.planner.reach import reach

    try:
        yield Check(name=name, status="ok", detail=reach(settings))
    except InfraAgentError as error:
        remedy = "check OPENAI_BASE_URL and OPENAI_API_KEY; --planner search needs no model"
        yield Check(name=name, status="warning", detail=str(error), remedy=remedy)
