"""Sampling profiles: collapsed stacks and speedscope files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hostile import fuzz, sound_stacks

from feedback.readers import Unreadable, collapsed, speedscope, stacks as stacks_module
from feedback.readers.formats import detect
from feedback.spans import Frame, Stacks

DATA = Path(__file__).resolve().parents[1] / "data"
PY_SPY, SPEEDSCOPE = DATA / "py_spy", DATA / "speedscope"


def raw(path: Path) -> Stacks:
    [stacks] = collapsed.read(path, "profile", "screen", "candidate")
    sound_stacks(stacks)
    return stacks


def text(tmp_path: Path, content: str | bytes, name: str = "p.raw") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def share(stacks: Stacks, function: str, caller_line: int | None = None) -> float:
    """Share of the weight whose innermost call of `function` was made from that line."""
    total = 0.0
    for stack, weight in zip(stacks.stacks, stacks.weight, strict=True):
        frames = [stacks.frames[n] for n in stack]
        total += weight * any(
            inner.function == function and (caller_line is None or outer.line == caller_line)
            for outer, inner in zip([Frame(""), *frames], frames, strict=False)
        )
    return total / float(stacks.weight.sum())


# Collapsed.


@pytest.mark.parametrize(
    ("name", "samples", "gil"),
    [("held", 1672, False), ("held_gil", 1493, True), ("released", 1806, False), ("released_gil", 374, True)],
)
def test_py_spy_recordings(name: str, samples: int, gil: bool) -> None:
    stacks = raw(PY_SPY / f"{name}.raw")
    assert stacks.weight.sum() == samples
    assert stacks.unit == "samples"
    assert stacks.only_gil is gil
    assert set(stacks.threads) == {"MainThread", "kv_transfer"}
    assert stacks.arm == "candidate"
    assert Frame("group_blocks", "gil_case.py", 55) in stacks.frames


def test_the_gil_is_held_at_dispatch_in_the_defect_only() -> None:
    """The dispatch call stands in line 82 of gil_case.py, combine in line 84."""
    held, released = raw(PY_SPY / "held_gil.raw"), raw(PY_SPY / "released_gil.raw")
    assert share(held, "stamped", 82) + share(held, "stamped", 84) > 0.7
    assert share(released, "stamped", 82) + share(released, "stamped", 84) < 0.05


def test_a_thread_is_one_before_and_after_its_name_is_known() -> None:
    lines = (PY_SPY / "held.raw").read_text().splitlines()
    assert any(line.startswith("thread (31128);") for line in lines)
    assert "31128" not in raw(PY_SPY / "held.raw").threads


def test_recordings_without_threads_have_one_nameless_thread() -> None:
    stacks = raw(PY_SPY / "held_no_threads.raw")
    assert stacks.threads == ("",)
    assert stacks.weight.sum() == 218
    assert () in stacks.stacks  # py-spy saw a thread without Python frames


def test_stacks_of_other_tools(tmp_path: Path) -> None:
    stacks = raw(text(tmp_path, "java;Main.run;[libc.so] 3\njava;Main.run;[libc.so] 4.5\nswapper 1\n"))
    assert [tuple(stacks.frames[n].function for n in s) for s in stacks.stacks] == [
        ("java", "Main.run", "[libc.so]"), ("swapper",)
    ]  # fmt: skip
    assert stacks.weight.tolist() == [7.5, 1]
    assert stacks.frames[0] == Frame("java")


def test_subprocesses_keep_their_threads_apart(tmp_path: Path) -> None:
    content = (
        'process 7:"python a.py";thread (1): Main;f (a.py:1) 2\nprocess 8:"python b.py";thread (1): Main;f (a.py:1) 3\n'
    )
    assert raw(text(tmp_path, content)).threads == ("7/Main", "8/Main")


@pytest.mark.parametrize("name", ["p.gil.raw", "gil.folded", "held-gil.txt", "GIL_run.raw"])
def test_the_name_says_that_only_gil_holders_were_sampled(tmp_path: Path, name: str) -> None:
    assert raw(text(tmp_path, "a;b 1\n", name)).only_gil
    assert not raw(text(tmp_path, "a;b 1\n", "agile.raw")).only_gil


def test_a_cut_last_line_is_lost_and_a_broken_one_is_located(tmp_path: Path) -> None:
    assert raw(text(tmp_path, "a;b 1\na;c")).lost == 1
    for bad in ("a;b 1\nbroken\na;c 1\n", "a;b 1\na -1\n", "a;b 1\na nan\n", "a;b 1\na;b 99999999999999999999\n"):
        with pytest.raises(Unreadable, match="line 2"):
            raw(text(tmp_path, bad))


def test_long_lines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="line 1"):
        raw(text(tmp_path, "a;" * (1 << 20) + "b 1\n"))


def test_deep_stacks_are_cut_and_text_is_printable(tmp_path: Path) -> None:
    stacks = raw(text(tmp_path, b"f;" * 5000 + b"\x1b[31mg\xff (\x00x.py:99999999999) 2\n"))
    assert len(stacks.stacks[0]) == 1000
    assert all((f.function + f.file).isprintable() for f in stacks.frames)
    assert all(f.line is None for f in stacks.frames)


def test_stacks_beyond_the_bounds_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = text(tmp_path, "a;b 1\na;c 2\na;d 3\na;b 4\n")
    monkeypatch.setattr(stacks_module, "MAX_STACKS", 2)
    stacks = raw(content)
    assert (stacks.weight.tolist(), stacks.lost) == ([5, 2], 1)
    monkeypatch.setattr(stacks_module, "MAX_KEPT", 3)
    assert raw(content).weight.tolist() == [5]


def test_logs_are_no_stacks(tmp_path: Path) -> None:
    log = b"0.01 I main: loading model; please wait\nprompt eval time 12\n"
    assert not collapsed.fits(tmp_path / "x.log", log)
    assert not collapsed.fits(tmp_path / "x.log", b"took 12\nran 3\n")
    assert not collapsed.fits(tmp_path / "x.log", b"")


@pytest.mark.parametrize("path", sorted(PY_SPY.glob("*.raw")) + sorted(SPEEDSCOPE.glob("*.json")))
def test_recordings_are_recognised(path: Path) -> None:
    assert detect(path).name == ("collapsed" if path.suffix == ".raw" else "speedscope")


def test_damaged_collapsed_files(tmp_path: Path) -> None:
    assert fuzz(collapsed.read, (PY_SPY / "held.raw").read_bytes(), tmp_path / "p.raw") > 20


# speedscope.


def scope(path: Path) -> list[Stacks]:
    found = speedscope.read(path, "profile", "screen", "baseline")
    for stacks in found:
        sound_stacks(stacks)
    return found


def made(
    tmp_path: Path, *profiles: object, frames: object = ({"name": "f"}, {"name": "g", "file": "a.py", "line": 3})
) -> Path:
    path = tmp_path / "p.speedscope.json"
    path.write_text(json.dumps({"shared": {"frames": frames}, "profiles": profiles}))
    return path


def sampled(**more: object) -> dict[str, object]:
    return {"type": "sampled", "name": "t", "unit": "seconds", "samples": [[0, 1], [0]], "weights": [1, 2], **more}


def evented(*events: tuple[str, float, int], unit: str = "milliseconds") -> dict[str, object]:
    return {
        "type": "evented", "name": "t", "unit": unit, "startValue": 0, "endValue": 9,
        "events": [{"type": kind, "at": at, "frame": frame} for kind, at, frame in events],
    }  # fmt: skip


def test_a_recording_of_py_spy() -> None:
    [stacks] = scope(SPEEDSCOPE / "held.speedscope.json")
    assert stacks.unit == "s"
    assert stacks.weight.sum() == pytest.approx(2.77)
    assert "kv_transfer" in stacks.threads
    assert not any(f.function.startswith("thread (") for f in stacks.frames)
    assert share(stacks, "stamped", None) > 0.3


def test_a_recording_of_pyinstrument() -> None:
    [stacks] = scope(SPEEDSCOPE / "held_pyinstrument.speedscope.json")
    data = json.loads((SPEEDSCOPE / "held_pyinstrument.speedscope.json").read_text())
    assert stacks.unit == "s"
    assert stacks.weight.sum() == pytest.approx(data["profiles"][0]["events"][-1]["at"])
    assert share(stacks, "stamped") > 0.5


def test_evented_profiles_give_self_time(tmp_path: Path) -> None:
    [stacks] = scope(
        made(tmp_path, evented(("O", 1, 0), ("O", 2, 1), ("C", 5, 1), ("C", 6, 0), ("O", 8, 0), ("C", 9, 0)))
    )
    found = {tuple(stacks.frames[n].function for n in s): w for s, w in zip(stacks.stacks, stacks.weight, strict=True)}
    assert found == {("f",): pytest.approx(3e-3), ("f", "g"): pytest.approx(3e-3)}


def test_each_unit_is_a_table_of_its_own(tmp_path: Path) -> None:
    found = scope(made(tmp_path, sampled(), sampled(unit="bytes"), sampled(unit="none"), sampled(unit="nanoseconds")))
    assert [s.unit for s in found] == ["s", "bytes", "samples"]
    assert [float(s.weight.sum()) for s in found] == pytest.approx([3 + 3e-9, 3, 3], rel=1e-12)


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        (sampled(weights=[1]), "2 samples but 1 weights"),
        (sampled(samples=[[0], [2]]), "none of the 2"),
        (sampled(samples=[[0], [-1]]), "none of the 2"),
        (sampled(weights=[1, -2]), "weight of -2"),
        (sampled(type="other"), "type `other`"),
        (evented(("O", 1, 0), ("C", 2, 1)), "not the innermost"),
        (evented(("C", 1, 0)), "not the innermost"),
        (evented(("O", 3, 0), ("C", 2, 0)), "backwards"),
        (evented(("O", 1, 7), ("C", 2, 7)), "none of the 2"),
        (sampled(weights="x"), "Expected `array`"),
    ],
)
def test_contradictions_are_located(tmp_path: Path, profile: object, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        scope(made(tmp_path, sampled(), profile))


def test_too_long_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedscope, "MAX_BYTES", 100)
    with pytest.raises(Unreadable, match="longer than"):
        scope(made(tmp_path, sampled()))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"shared": {"frames": []}}', "[" * 100_000, "\x1f\x8b\x08zz"])
def test_what_is_no_speedscope_file_is_unreadable(tmp_path: Path, content: str) -> None:
    with pytest.raises(Unreadable):
        scope(text(tmp_path, content.encode("latin-1"), "x.speedscope.json"))


def test_damaged_speedscope_files(tmp_path: Path) -> None:
    for name in ("held", "held_pyinstrument"):
        data = (SPEEDSCOPE / f"{name}.speedscope.json").read_bytes()
        assert fuzz(speedscope.read, data, tmp_path / "p.json", json=True) > 0
