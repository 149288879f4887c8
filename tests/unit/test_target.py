"""`target.toml`: what is valid, and that an error names the line on which it stands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from infra_agent.errors import TargetInvalid, WrongUse
from infra_agent.places import line_of
from infra_agent.target import (
    CommandProbe,
    Knob,
    LoadProbe,
    SlicesProbe,
    TargetSpec,
    load_target,
    parse_target,
    schedule,
    values_at,
)

TEXT = """\
schema = 1
name = "example"
description = "An example"
editable = ["kernels", "launch.toml"]
hidden = ["answers"]

[objective]
metric = "slice_time_s"
direction = "minimize"
probe = "bench"

[launch_file]
path = "launch.toml"

[[knobs]]
name = "threads"
description = "How many"
key = "server.threads"
minimum = 1
maximum = 64
suggest = ["cores", "cores/2", 8]

[[knobs]]
name = "cache"
description = "Type of the cache"
key = "cache_type"
choices = ["f16", "q8_0"]
[[knobs.conditions]]
values = ["q8_0"]
requires = { flash = [true] }

[[knobs]]
name = "flash"
description = "Flash attention"
key = "flash"
choices = [true, false]

[[moves]]
name = "quantized"
description = "Both at once"
knobs = { cache = "q8_0", flash = true, threads = "cores-1" }

[[controls]]
name = "bare"
description = "Nothing set"
knobs = { threads = 4 }

[server]
command = ["serve"]

[[packages]]
name = "engine"
requirement = "engine==1.0"

[[probes]]
timeout_s = 60
name = "build"
kind = "build"
method = "command"
command = ["make"]

[[probes]]
name = "bench"
kind = "microbench"
method = "slices"
worker = ["worker"]
blocks = 5
looks = [4, 8]

[[probes]]
name = "load"
kind = "load"
method = "load"
traffic = "traffic.json"
tokenizer = "{package:engine}/vocab.gguf"

[[probes]]
name = "events"
kind = "events"
method = "events"
during = "load"
"""
SHIPPED = Path(__file__).parents[2] / "targets"


def parse(text: str = TEXT) -> TargetSpec:
    return parse_target(text, "target.toml")


def refusal(text: str) -> str:
    with pytest.raises(TargetInvalid) as caught:
        parse(text)
    return str(caught.value)


def changed(before: str, after: str) -> str:
    assert TEXT.count(before) == 1
    return TEXT.replace(before, after)


def line(needle: str, text: str = TEXT) -> int:
    """The line, from 1, of the only place where `needle` stands."""
    numbers = [n for n, content in enumerate(text.splitlines(), 1) if needle in content]
    assert len(numbers) == 1
    return numbers[0]


def test_valid_target() -> None:
    spec = parse()
    assert spec.name == "example"
    assert isinstance(spec.probe("bench"), SlicesProbe)
    assert spec.knob("cache") is spec.knobs[1]
    assert spec.knob("absent") is None
    assert spec.objective.min_effect == 0.02
    with pytest.raises(KeyError):
        spec.probe("absent")


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*/target.toml")), ids=lambda p: p.parent.name)
def test_shipped_targets_are_valid(path: Path) -> None:
    spec, text = load_target(path.parent)
    assert spec.name == path.parent.name
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("before", "after", "where", "what"),
    [
        ("schema = 1", "schema = 2", "schema", "Input should be 1"),
        ('name = "example"', 'name = "an example"', "name", "should match pattern"),
        ('direction = "minimize"', 'direction = "down"', "objective.direction", "'maximize' or 'minimize'"),
        ('hidden = ["answers"]', 'hidden = ["/answers"]', "hidden.0", "stay inside it"),
        ('hidden = ["answers"]', 'hidden = ["a/../../b"]', "hidden.0", "stay inside it"),
        ('hidden = ["answers"]', 'hidden = [""]', "hidden.0", "stay inside it"),
        ("maximum = 64", 'maximum = "many"', "knobs.0.maximum", "valid integer"),
        ("minimum = 1", "minimum = 99", "knobs.0", "must both be given, in order"),
        ('choices = ["f16", "q8_0"]', "", "knobs.1", "either `choices` or `minimum` and `maximum`"),
        ('"cores/2", 8]', '"cores/2", 99]', "knobs.0", "suggest: threads = 99 is outside 1..64"),
        ("timeout_s = 60", 'timeout_s = "long"', "probes.0.timeout_s", "valid number"),
        ("timeout_s = 60", "timeout_s = 0", "probes.0.timeout_s", "greater than 0"),
        ("timeout_s = 60", "timeout_s = inf", "probes.0.timeout_s", "finite number"),
        ("looks = [4, 8]", "looks = [8, 4]", "probes.1.looks", "must rise"),
        ("looks = [4, 8]", "looks = [1, 4]", "probes.1.looks", "from at least 2"),
        ("looks = [4, 8]", "looks = []", "probes.1.looks", "must rise"),
        ("blocks = 5", "blocks = 0", "probes.1.blocks", "greater than or equal to 1"),
        ("blocks = 5", "blokcs = 5", "probes.1.blokcs", "Extra inputs are not permitted"),
        ('method = "slices"', 'method = "slicing"', "probes.1", "slicing"),
        ('name = "build"', 'name = "../build"', "probes.0.name", "should match pattern"),
        ('name = "engine"', 'name = "../../engine"', "packages.0.name", "should match pattern"),
        ('during = "load"', "", "probes.3.during", "Field required"),
        ('traffic = "traffic.json"', 'traffic = "/etc/passwd"', "probes.2.traffic", "stay inside it"),
        ("requires = { flash = [true] }", "requires = 5", "knobs.1.conditions.0.requires", "an object"),
        ('command = ["serve"]', 'command = ["serve"]\nport = 80', "server.port", "Extra inputs"),
        ("schema = 1", "schema = true", "schema", "Input should be 1"),
        ("schema = 1", "schema = 1.0", "schema", "Input should be 1"),
        ('description = "An example"', 'description = "a\\u0000b"', "description", "control character '\\x00'"),
        ('hidden = ["answers"]', 'hidden = ["a\\u001bb"]', "hidden.0", "control character"),
        ('description = "An example"', "description = 2020-01-01", "description", "put it in quotes"),
        ('["kernels", "launch.toml"]', "[]", "editable", "at least 1 item"),
        ('command = ["make"]', "command = []", "probes.0.command", "must begin with a program"),
        ('worker = ["worker"]', 'worker = [" "]', "probes.1.worker", "must begin with a program"),
        ('command = ["serve"]', "command = []", "server.command", "must begin with a program"),
        (
            'command = ["make"]',
            'command = ["{pyhton}"]',
            "probes.0.command",
            "placeholder {pyhton}; known here are",
        ),
        ('worker = ["worker"]', 'worker = ["x", "{package:no}/x"]', "probes.1.worker", "placeholder {package:no}"),
        ("{package:engine}", "{package:engines}", "probes.2.tokenizer", "placeholder {package:engines}"),
        ('command = ["serve"]', 'command = ["serve", "{sock}"]', "server.command", "placeholder {sock}"),
        ("blocks = 5", "blocks = 1001", "probes.1.blocks", "less than or equal to 1000"),
        ("blocks = 5", "blocks = true", "probes.1.blocks", "valid integer"),
        ("blocks = 5", 'blocks = "5"', "probes.1.blocks", "valid integer"),
        ("blocks = 5", "gate = 1", "probes.1.gate", "valid boolean"),
        ("timeout_s = 60", "timeout_s = nan", "probes.0.timeout_s", "finite number"),
        ("timeout_s = 60", "timeout_s = 1e300", "probes.0.timeout_s", "less than or equal to"),
        ("looks = [4, 8]", "looks = [4, 1000000]", "probes.1.looks", "at most 10000"),
        ("maximum = 64", f"maximum = {2**63}", "knobs.0.maximum", "64 bits"),
        ('key = "flash"', 'key = "cache_type"', "knobs.2.key", "can't stand beside 'cache_type' of knob cache"),
        ('key = "flash"', 'key = "server"', "knobs.2.key", "can't stand beside 'server.threads' of knob threads"),
        ('key = "flash"', 'key = "server.threads.n"', "knobs.2.key", "can't stand beside 'server.threads'"),
        ('key = "flash"', 'key = ""', "knobs.2.key", "joined by dots"),
        ('key = "flash"', 'key = "a..b"', "knobs.2.key", "joined by dots"),
        ('key = "flash"', "key = 'a.\"b\"'", "knobs.2.key", "without quotes"),
        ('path = "launch.toml"', 'path = "/etc/launch.toml"', "launch_file.path", "stay inside it"),
        ('path = "launch.toml"', 'path = "other.toml"', "launch_file.path", "add it to `editable`"),
        ('path = "launch.toml"', 'path = "answers"', "launch_file.path", "is hidden"),
        ('requirement = "engine==1.0"', 'requirement = "--pre"', "packages.0.requirement", "match pattern"),
    ],
)
def test_error_names_file_line_place_and_reason(before: str, after: str, where: str, what: str) -> None:
    text = changed(before, after)
    said = refusal(text)
    assert what in said
    number, place, _ = said.removeprefix("target.toml:").split(":", 2)
    assert place.strip() == where
    key = where.split(".")[-2 if where.endswith(".0") else -1]
    after = next(x for x in text.splitlines() if after.splitlines()[-1] in x) if after else after
    content = text.splitlines()[int(number) - 1]
    if key in after:
        assert content == after.splitlines()[-1]
    else:  # what is missing, or wrong as a whole, is at its table
        first = text[: TEXT.index(before)].count("\n")
        assert content.startswith("[[")
        assert int(number) <= first
        assert not any(x.startswith("[[") for x in text.splitlines()[int(number) : first])


@pytest.mark.parametrize(
    ("added", "where", "what"),
    [
        ("[limits]\nmemory_bytes = 0", "limits.memory_bytes", "greater than 0"),
        ("[limits]\nprocesses = -1", "limits.processes", "greater than 0"),
        ("[limits]\nopen_files = true", "limits.open_files", "valid integer"),
        ("[limits]\ntimeout_s = inf", "limits.timeout_s", "finite"),
        ("[contention]\nsteal_share = nan", "contention.steal_share", "finite"),
        ("[contention]\nsteal_share = -0.1", "contention.steal_share", "greater than or equal to 0"),
        ('[env]\n"A B" = "x"', "env.A B", "match pattern"),
        ('[env]\n"A=B" = "x"', "env.A=B", "match pattern"),
        ("[env]\nN = 1", "env.N", "valid string"),
    ],
)
def test_error_of_what_is_optional_names_its_line(added: str, where: str, what: str) -> None:
    text = f"{TEXT}\n{added}\n"
    said = refusal(text)
    assert said.startswith(f"target.toml:{len(text.splitlines())}: {where}: ")
    assert what in said


def test_braces_that_are_no_placeholders_are_left_alone() -> None:
    command = """command = ["sh", "-c", '{python} "${HOME}" { print } {"a": 1} {}']"""
    assert parse(changed('command = ["make"]', command)).probe("build")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_target_that_is_no_file_never_hangs(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "target.toml"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(TargetInvalid, match="not a regular file"):
        load_target(tmp_path)


def test_commands_to_type_are_quoted(tmp_path: Path) -> None:
    (tmp_path / "my engine").mkdir()
    with pytest.raises(TargetInvalid, match=f"infra-agent init '{tmp_path}/my engine'"):
        load_target(tmp_path / "my engine")


def test_error_of_a_later_table_is_not_blamed_on_an_earlier_one() -> None:
    """Both probes have the key, and the tag of the union is a key of the first."""
    text = TEXT.replace('method = "slices"', 'method = "command"').replace("worker =", "command =")
    text = text.replace("blocks = 5\nlooks = [4, 8]", "timeout_s = -1")
    assert f"target.toml:{line('timeout_s = -1', text)}: probes.1.timeout_s" in refusal(text)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ('name = "flash"', 'name = "cache"', "knob 'cache' is defined twice"),
        ('name = "build"', 'name = "bench"', "probe 'bench' is defined twice"),
        ('probe = "bench"', 'probe = "build"', "probe 'build' is no probe with method slices or load"),
        ('probe = "bench"', 'probe = "absent"', "probe 'absent' is no probe"),
        ('[launch_file]\npath = "launch.toml"\n', "", "knobs need a [launch_file]"),
        ('[server]\ncommand = ["serve"]\n', "", "need a [server]"),
        ("knobs = { threads = 4 }", "knobs = { threads = 400 }", "control bare: threads = 400 is outside 1..64"),
        ("knobs = { threads = 4 }", "knobs = { thread = 4 }", "control bare: unknown knob 'thread'"),
        ('cache = "q8_0", flash = true', 'cache = "q8_0", flash = false', "move quantized: cache = 'q8_0' needs flash"),
        ("flash = [true]", "flahs = [true]", "knob cache: a condition requires 'flahs', which is no knob"),
        ('during = "load"', 'during = "bench"', "during 'bench' is no probe with method load"),
        ('during = "load"', 'during = "absent"', "during 'absent' is no probe with method load"),
    ],
)
def test_contradiction_is_named(before: str, after: str, what: str) -> None:
    assert what in refusal(changed(before, after))


TRACE = """
[[probes]]
name = "trace"
kind = "trace"
method = "command"
command = ["run", "--batch={param:batch}", "{param:fused}"]
params = { batch = 4, fused = true }
reports = [{ path = "/scratch/trace.json", format = "chrome_trace" }]
"""


def test_a_command_may_leave_reports_and_take_parameters() -> None:
    probe = parse(TEXT + TRACE).probe("trace")
    assert isinstance(probe, CommandProbe)
    assert probe.filled == ("run", "--batch=4", "true")
    assert probe.waits
    (report,) = probe.reports
    assert (report.path, report.format, report.limit_bytes) == ("/scratch/trace.json", "chrome_trace", 64 << 20)
    assert not parse().probe("build").waits


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("/scratch/trace.json", "trace.json", "below /scratch or /tree"),
        ("/scratch/trace.json", "/etc/passwd", "below /scratch or /tree"),
        ("/scratch/trace.json", "/scratch", "below /scratch or /tree"),
        ("/scratch/trace.json", "/scratch/../etc/passwd", "below /scratch or /tree"),
        ("/scratch/trace.json", "/tree/a/./trace.json", "below /scratch or /tree"),
        ("/scratch/trace.json", "/scratch//trace.json", "below /scratch or /tree"),
        ("/scratch/trace.json", "/scratch/{param:batch}.json", "below /scratch or /tree"),
        ("/scratch/trace.json", "/scratch/" + "a" * 200, "below /scratch or /tree"),
        ("chrome_trace", "chrome", "unknown format 'chrome'; known are: nsight, chrome_trace"),
        ("chrome_trace", "slices", "unknown format 'slices'"),
        ('"chrome_trace"', '"chrome_trace", limit_bytes = 0', "greater than 0"),
        ("reports = [", 'reports = [{ path = "/scratch/trace.json", format = "junit" }, ', "declared twice"),
        ("batch = 4", "batch = 4, steps = 2", "does not use the parameter 'steps'"),
        ("batch = 4, ", "", "unknown placeholder {param:batch}"),
        ('kind = "trace"', 'kind = "trace"\ngate = true', "probe trace: every experiment needs its builds and gates"),
        ('kind = "trace"', 'kind = "build"\nwhen = "asked"', "probe trace: every experiment needs its builds"),
        ('kind = "trace"', 'kind = "trace"\nwhen = "never"', "'always' or 'asked'"),
    ],
)
def test_a_report_or_probe_that_can_not_work_is_refused(before: str, after: str, what: str) -> None:
    assert before in TRACE
    assert what in refusal(TEXT + TRACE.replace(before, after, 1))


@pytest.mark.parametrize(("probe", "what"), [("bench", "the objective's probe"), ("events", "ask for method events")])
def test_not_every_probe_can_wait_to_be_asked(probe: str, what: str) -> None:
    assert what in refusal(changed(f'name = "{probe}"\nkind', f'name = "{probe}"\nwhen = "asked"\nkind'))


def test_guardrail_must_be_measured_with_the_objective() -> None:
    guardrail = '[[guardrails]]\nmetric = "p99"\ndirection = "minimize"\nprobe = "load"\nmax_regression = 0.1\n'
    assert "guardrail p99: must be measured by 'bench'" in refusal(TEXT + guardrail)


def test_several_errors_are_named_at_once() -> None:
    text = changed("blocks = 5", "blocks = 0").replace("timeout_s = 60", "timeout_s = 0")
    assert [x.split(":")[1] for x in refusal(text).splitlines()] == [
        str(line("timeout_s = 0", text)),
        str(line("blocks = 0", text)),
    ]


def test_invalid_toml_is_named_with_its_line() -> None:
    said = refusal(changed("[server]", "[server"))
    assert said.startswith("target.toml: not valid TOML: ")
    assert f"at line {line('[server')}" in said


def test_invalid_target_is_wrong_use() -> None:
    assert issubclass(TargetInvalid, WrongUse)
    assert TargetInvalid().exit_code == 2


def test_directory_without_a_target_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(TargetInvalid, match="does not exist; `infra-agent init"):
        load_target(tmp_path)


def test_unreadable_target_is_named(tmp_path: Path) -> None:
    (tmp_path / "target.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(TargetInvalid, match="can't be read"):
        load_target(tmp_path)
    (tmp_path / "target.toml").unlink()
    (tmp_path / "target.toml").mkdir()
    with pytest.raises(TargetInvalid, match="can't be read"):
        load_target(tmp_path)


def test_error_of_a_file_names_its_path(tmp_path: Path) -> None:
    (tmp_path / "target.toml").write_text(changed("blocks = 5", "blocks = 0"))
    with pytest.raises(TargetInvalid, match=rf"target\.toml:{line('blocks = 5')}: probes\.1\.blocks"):
        load_target(tmp_path)


# Lines.

PLACES = """\
a = 1
[table]
"quoted key" = 2
dotted.key = 3
[[list]] # first
x = 1
[[list.inner]]
y = 1
[[list.inner]]
y = 2
[ list.table ]
z = 1
[[list]]
x = 2
inline = [
  { x = 9 },
]
"""


@pytest.mark.parametrize(
    ("loc", "number"),
    [
        (("a",), 1),
        (("table",), 2),
        (("table", "quoted key"), 3),
        (("table", "dotted", "key"), 4),
        (("table", "absent"), 2),
        (("list",), 5),
        (("list", 0, "x"), 6),
        (("list", 0, "inner", 1, "y"), 10),
        (("list", 0, "inner", 1, "absent"), 9),
        (("list", 0, "table", "z"), 12),
        (("list", 1), 13),
        (("list", 1, "x"), 14),
        (("list", 1, "inline", 0, "x"), 15),
        (("list", 1, "y"), 13),
        (("absent",), None),
        ((), None),
    ],
)
def test_line_of(loc: tuple[int | str, ...], number: int | None) -> None:
    assert line_of(PLACES, loc) == number


# Knobs.


def knob(name: str = "threads") -> Knob:
    found = parse().knob(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("threads", 1, None),
        ("threads", 64, None),
        ("threads", None, None),
        ("threads", 0, "outside 1..64"),
        ("threads", 65, "outside 1..64"),
        ("threads", 2.0, "not a whole number"),
        ("threads", True, "not a whole number"),
        ("threads", "8", "not a whole number"),
        ("cache", "f16", None),
        ("cache", "f32", "is not one of 'f16', 'q8_0'"),
        ("flash", True, None),
        ("flash", 1, "is not one of True, False"),
        ("flash", "true", "is not one of"),
    ],
)
def test_value_outside_the_domain_is_refused(name: str, value: Any, reason: str | None) -> None:
    said = knob(name).refusal(value, {})
    assert (said is None) == (reason is None)
    assert reason is None or reason in (said or "")


@pytest.mark.parametrize(
    ("others", "is_refused"),
    [({}, False), ({"flash": None}, False), ({"flash": True}, False), ({"flash": False}, True)],
)
def test_condition_on_another_knob(others: dict[str, Any], is_refused: bool) -> None:
    assert (knob("cache").refusal("q8_0", others) is not None) is is_refused
    assert knob("cache").refusal("f16", others) is None
    assert (parse().refusal({"cache": "q8_0", **others}) is not None) is is_refused


def test_unknown_knob_is_refused_with_those_that_exist() -> None:
    said = parse().refusal({"thread": 4})
    assert said == "unknown knob 'thread'; this target's knobs are: threads, cache, flash"


@pytest.mark.parametrize(
    ("value", "cores", "expected"),
    [
        ("cores", 8, 8),
        ("cores/2", 7, 3),
        ("cores / 2", 8, 4),
        ("cores*2", 8, 16),
        ("cores-1", 1, 1),
        ("cores+1", 8, 9),
        ("cores/0", 8, 8),
        ("core", 8, "core"),
        ("cores^2", 8, "cores^2"),
        (5, 8, 5),
        (None, 8, None),
    ],
)
def test_value_of_the_machines_size(value: Any, cores: int, expected: Any) -> None:
    assert knob().resolve(value, cores) == expected


def test_word_cores_means_nothing_to_a_knob_of_choices() -> None:
    assert not knob("cache").is_sized("cores")
    assert knob("cache").resolve("cores", 8) == "cores"


def test_values_are_read_from_a_launch_file() -> None:
    data = {"server": {"threads": 3}, "cache_type": "f16", "flash": [1]}
    assert values_at(data, parse()) == {"threads": 3, "cache": "f16", "flash": None}
    assert values_at({"server": 5}, parse()) == {"threads": None, "cache": None, "flash": None}


# The schedule.


def test_noise_of_another_way_of_measuring_is_not_this_ones() -> None:
    spec = parse_target(TEXT, "target.toml")
    objective = spec.probe(spec.objective.probe)
    assert isinstance(objective, SlicesProbe)

    def noise_probe(**fields: Any) -> str:
        probes = [p.model_copy(update=fields) if p is objective else p for p in spec.probes]
        return spec.model_copy(update={"probes": tuple(probes)}).noise_probe

    assert noise_probe() == spec.noise_probe
    assert noise_probe(looks=(2, 3), budget_s=1.0, description="other words") == spec.noise_probe
    changes: list[dict[str, Any]] = [{"params": {"n": 1}}, {"blocks": 3}, {"side_by_side": False}, {"worker": ("x",)}]
    assert len({noise_probe(**change) for change in changes} | {spec.noise_probe}) == 5


def test_schedule_of_a_paired_probe() -> None:
    spec = parse(TEXT + "\n[contention]\nforeign_cpu_share = 0.3\n")
    bench, load = spec.probe("bench"), spec.probe("load")
    assert isinstance(bench, SlicesProbe)
    assert isinstance(load, LoadProbe)
    plan = schedule(spec, bench, (3,))
    assert (plan.looks, plan.blocks, plan.cpus, plan.warmup_slices) == ((4, 8), 5, (3,), 2)
    assert plan.limit.foreign_cpu_share == 0.3
    assert plan.budget_s == bench.budget_s
    free = schedule(spec, bench.model_copy(update={"pinned": False}), (3,))
    assert free.cpus == ()
    served = schedule(spec, load, (3,))
    assert (served.cpus, served.warmup_slices, served.max_repeats) == ((), load.warmup_slices, load.max_repeats)
