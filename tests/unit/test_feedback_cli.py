"""`feedback` as a program: by itself, and as `infra-agent feedback` with a memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from feedback import cli
from feedback.cli import Known, Memory, Wrong
from feedback.comparison import Comparison
from feedback.readers import engine_log as log, formats
from feedback.signals import Evidence, HostLocation, Signal
from infra_agent.comparisons import KEPT, Comparisons
from infra_agent.domain import Campaign, CampaignSpec, Change, Experiment, Hypothesis, Proposal, State, now
from infra_agent.settings import load_settings
from infra_agent.store import new_id, open_store
from sandboxes.results import Artefact, Run

ROOT = Path(__file__).parents[2]
LLAMACPP = ROOT / "tests" / "data" / "llamacpp"
HEALTHY, BROKEN = str(LLAMACPP / "server.log"), str(LLAMACPP / "context_exceeded.log")


@pytest.fixture(autouse=True)
def logs_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    row = formats.Format("engine_log", "a log", lambda path, head: path.suffix == ".log", log.read)
    monkeypatch.setattr(formats, "FORMATS", (row,))


def run(*arguments: str, memory: Memory | None = None) -> tuple[int, str]:
    said: list[str] = []
    code = cli.run(arguments, said.append, memory)
    return code, "\n".join(said)


def an_id() -> str:
    found = json.loads(run("compare", HEALTHY, BROKEN, "--json")[1])
    return str(next(s["fingerprint"] for s in found["signals"] if s["level"] != "note"))


def test_read_tells_what_is_in_files() -> None:
    code, text = run("read", HEALTHY, str(LLAMACPP / "load.jsonl"))
    assert code == 0
    assert "server.log: engine_log: " in text
    assert "not read: load.jsonl: no known format" in text
    found = json.loads(run("read", HEALTHY, "--json")[1])
    assert found["files"][0]["kinds"] == found["kinds"]
    assert found["kinds"]["event"] > 0


def test_one_thing_given_twice_is_no_comparison(tmp_path: Path) -> None:
    link = tmp_path / "again.log"
    link.symlink_to(HEALTHY)
    for other in (HEALTHY, str(link)):
        with pytest.raises(Wrong, match="are both"):
            run("compare", HEALTHY, other)


def test_a_place_without_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="no files there"):
        run("read", str(tmp_path))


def test_a_reader_that_went_away_is_no_broken_path() -> None:
    def gone(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        cli.run(("read", HEALTHY), gone)


def test_compare_prints_each_format() -> None:
    code, text = run("compare", HEALTHY, BROKEN)
    assert code == 0
    assert text.startswith("correct? ")
    assert text.endswith("2 files read")
    assert json.loads(run("compare", HEALTHY, BROKEN, "--format", "sarif")[1])["version"] == "2.1.0"
    assert run("compare", HEALTHY, BROKEN, "--format", "markdown")[1].startswith("### server.log against ")
    as_json = json.loads(run("compare", HEALTHY, BROKEN, "--format", "json")[1])
    assert Comparison.model_validate({**as_json, "signals": []}).read[0].arm == "baseline"


def test_the_budget_bounds_the_text() -> None:
    texts = [run("compare", HEALTHY, BROKEN, "--tokens", str(n))[1] for n in (30, 2000)]
    assert len(texts[0]) < len(texts[1])
    assert "more signal" in texts[0]


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("compare",), ("unknown",), ("compare", HEALTHY, BROKEN, "--format", "html"), ("read",),
        ("compare", HEALTHY, BROKEN, "--tokens", "0"), ("compare", HEALTHY, BROKEN, "--tokens", "x"),
        ("compare", HEALTHY, "/nonexistent"), ("explain", "0123456789ab"), ("explain", "0123456789ab", HEALTHY, BROKEN),
        ("read", "\udcff"),
    ],
)  # fmt: skip
def test_wrong_use_is_said(arguments: tuple[str, ...]) -> None:
    with pytest.raises(Wrong):
        run(*arguments)


def test_nothing_readable_is_wrong_use_too() -> None:
    unknown = str(LLAMACPP / "load.jsonl")
    assert run("read", unknown)[0] == 2
    assert run("compare", unknown, str(LLAMACPP / "scrapes.json"))[0] == 2
    code, text = run("compare", HEALTHY, unknown)
    assert code == 2
    assert "not read: load.jsonl" in text


def test_a_broken_run_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(Wrong, match=r"run\.json, line 1"):
        run("compare", str(tmp_path))


def test_help_tells_formats_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", "--help")[0] == 0
    text = capsys.readouterr().out
    assert "engine_log" in text
    assert "Exit codes" in text


def test_explain_with_the_files() -> None:
    signal = an_id()
    code, text = run("explain", signal[:6], HEALTHY, BROKEN)
    assert code == 0
    assert text.startswith(f"[{signal}]")


def test_explain_by_memory() -> None:
    kept: list[Comparison] = []

    def recall(asked: str) -> list[Known]:
        return [Known("experiment 3", s, c.read) for c in kept for s in c.signals if s.fingerprint == asked]

    memory = Memory(kept.append, recall)
    run("compare", HEALTHY, BROKEN, memory=memory)
    signal = next(s for s in kept[0].signals if s.level != "note")
    code, text = run("explain", signal.fingerprint, memory=memory)
    assert code == 0
    assert text.startswith(f"experiment 3\n[{signal.fingerprint}]")


@pytest.fixture
def kept(tmp_path: Path) -> Comparisons:
    return Comparisons(load_settings({"INFRA_AGENT_HOME": str(tmp_path / "home")}), lambda text: None)


def memory_of(kept: Comparisons) -> Memory:
    return Memory(kept.keep, kept.recall)


def test_comparisons_are_kept_in_the_home(kept: Comparisons, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(LLAMACPP)
    run("compare", "server.log", "context_exceeded.log", memory=memory_of(kept))
    signal = an_id()
    monkeypatch.chdir(tmp_path)  # the files are found from anywhere
    code, text = run("explain", signal, memory=memory_of(kept))
    assert code == 0
    assert signal in text


def test_only_the_latest_comparisons_are_kept(kept: Comparisons, tmp_path: Path) -> None:
    for _ in range(KEPT + 3):
        run("compare", HEALTHY, BROKEN, memory=memory_of(kept))
    assert len(list((tmp_path / "home" / "feedback").iterdir())) == KEPT


def test_damaged_memory_is_passed_over(kept: Comparisons, tmp_path: Path) -> None:
    run("compare", HEALTHY, BROKEN, memory=memory_of(kept))
    signal = an_id()
    for n, text in enumerate(("", "{", "[" * 100_000, '{"base": 3}', "\x00")):
        (tmp_path / "home" / "feedback" / f"9999010{n}T0.json").write_text(text)
    assert kept.recall(signal)


def test_a_disk_that_takes_nothing_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    notes: list[str] = []
    kept = Comparisons(load_settings({"INFRA_AGENT_HOME": str(tmp_path / "home")}), notes.append)
    code, text = run("compare", HEALTHY, BROKEN, memory=memory_of(kept))
    assert code == 0
    assert text
    assert "not kept" in notes[0]


def test_an_unknown_signal_is_wrong_use_and_makes_no_database(kept: Comparisons, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="no signal"):
        run("explain", "0123456789ab", memory=memory_of(kept))
    assert not (tmp_path / "home").exists()


def test_signals_of_campaigns_are_explained_from_their_runs(kept: Comparisons, tmp_path: Path) -> None:
    settings = load_settings({"INFRA_AGENT_HOME": str(tmp_path / "home")})
    signal = Signal(
        rule_id="stability.oom", level="error", finding="observed", message="out of memory",
        locations=(HostLocation(),), evidence=(Evidence(artefact="server.log", line=2),),
    )  # fmt: skip
    owner = Campaign(
        id=new_id("cmp"), spec=CampaignSpec(target="t"), target_name="t", target_toml="", source_commit="s",
        base_commit="b", host_fingerprint="h",
    )  # fmt: skip
    proposal = Proposal(
        hypothesis=Hypothesis(claim="c", mechanism="m", location="l", falsifier="f"), change=Change(knobs={"k": 1}),
        probe="load",
    )  # fmt: skip
    running = Experiment(
        id=new_id("exp"), campaign_id=owner.id, number=4, role="change", state=State.RUNNING, proposal=proposal,
        parent_commit="b", started_at=now(), signals=(signal,),
    )  # fmt: skip
    with open_store(settings.database_url) as store, store.transaction() as ledger:
        ledger.add_campaign(owner)
        ledger.add_experiment(running)
    directory = tmp_path / "home" / "campaigns" / owner.id / "runs" / running.id
    directory.mkdir(parents=True)
    (directory / "server.log").write_text("fine\nout of memory\n")
    Run(directory=directory, artefacts=(Artefact(path="server.log", format="engine_log", probe="load"),)).save()
    code, text = run("explain", signal.fingerprint[:8], memory=memory_of(kept))
    assert code == 0
    assert text.startswith(f"experiment 4 of campaign {owner.id}\n[{signal.fingerprint}]")
    assert "> 2: out of memory" in text
    named = run("explain", f"#4/{signal.fingerprint}", memory=memory_of(kept))
    assert named == (code, text)
    with pytest.raises(Wrong, match="no signal"):
        run("explain", f"#3/{signal.fingerprint}", memory=memory_of(kept))
    (directory / "run.json").unlink()
    shutil.rmtree(directory)
    assert "(not among the files)" in run("explain", signal.fingerprint, memory=memory_of(kept))[1]


# The programs.


def program(module: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "INFRA_AGENT_HOME": str(home)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)


def test_feedback_by_itself_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    done = program("feedback.cli", "compare", str(tmp_path), home=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout == "no signals: every rule looked and found nothing to say\n0 files read\n"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    done = program("feedback.cli", "compare", "gone", home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "feedback: gone: No such file or directory\n")


def test_infra_agent_feedback(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert program("infra_agent.cli", "feedback", "compare", ".", home=tmp_path).stdout.endswith("0 files read\n")
    wrong = program("infra_agent.cli", "feedback", "read", "gone", "--json", home=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("infra-agent: gone: ")
    assert json.loads(wrong.stdout.splitlines()[-1])["exit_code"] == 2
    shown = program("infra_agent.cli", "feedback", "--help", home=tmp_path)
    assert shown.returncode == 0
    assert "usage: infra-agent feedback" in shown.stdout
    assert "feedback" in program("infra_agent.cli", "--help", home=tmp_path).stdout
