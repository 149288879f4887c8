"""The tinyserve target with the real compiler: its kernel, its workers, the patches of its campaign.

Times nothing: what a patch saves is told by instruction counts.
"""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "targets" / "tinyserve"
PROTOCOL_PAGE = ROOT / "docs" / "worker-protocol.md"

CASES: tuple[dict[str, int], ...] = (
    {"batch": 1, "heads": 8, "k": 128, "v": 128, "steps": 4},
    {"batch": 3, "heads": 2, "k": 128, "v": 64, "steps": 16},
    {"batch": 2, "heads": 3, "k": 64, "v": 32, "steps": 64},
    {"batch": 1, "heads": 2, "k": 37, "v": 96, "steps": 8},
    {"batch": 1, "heads": 2, "k": 256, "v": 32, "steps": 1},
)
SEEDS = (0, 1, 4_000_000_007)
TOLERANCE = 2e-6
"""Relative RMS against float64; the worst seen over 512 steps is 4.4e-7."""

Tree = Callable[[str], Path]
Array = dict[str, Any]


def run(*command: str, cwd: Path, text_in: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, input=text_in, capture_output=True, text=True, timeout=120, check=False)


def build(root: Path) -> Path:
    made = run("make", "-C", "kernels", cwd=root)
    assert made.returncode == 0, made.stderr
    assert "warning" not in made.stderr
    return root


def copy(root: Path) -> Path:
    shutil.copytree(TARGET, root, ignore=shutil.ignore_patterns("build", "__pycache__"))
    return root


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A built copy of the target: as it is (`baseline`) or with one patch of the scripted campaign."""
    built: dict[str, Path] = {}

    def get(arm: str) -> Path:
        if arm not in built:
            root = copy(tmp_path_factory.mktemp("tinyserve") / arm)
            if arm != "baseline":
                assert run("git", "init", "-q", cwd=root).returncode == 0
                applied = run("git", "apply", f"scripts/{arm}.patch", cwd=root)
                assert applied.returncode == 0, applied.stderr
            built[arm] = build(root)
        return built[arm]

    return get


def converse(root: Path, script: str, *requests: Any) -> list[dict[str, Any]]:
    """Replies of a fresh worker to these requests, after its ready line."""
    lines = [r if isinstance(r, str) else json.dumps(r) for r in requests]
    ended = run(sys.executable, script, cwd=root, text_in="".join(f"{line}\n" for line in lines))
    assert ended.returncode == 0, ended.stderr
    ready, *replies = (json.loads(line) for line in ended.stdout.splitlines())
    assert ready == {"ready": True, "protocol": 1}
    assert len(replies) == len(requests)
    return replies


def timed(number: int, seed: int, **params: int | str) -> dict[str, Any]:
    return {"slice": number, "seed": seed, "params": params}


def outputs(root: Path, script: str, case: dict[str, int]) -> list[dict[str, Array]]:
    """`outputs` for each of SEEDS."""
    requests = [timed(n, seed, op="outputs", **case) for n, seed in enumerate(SEEDS)]
    return [reply["outputs"] for reply in converse(root, script, *requests)]


def decode(array: Array, dtype: str) -> NDArray[np.float64]:
    assert array["dtype"] == dtype
    data = np.frombuffer(base64.b64decode(array["data"]), dtype=np.dtype(dtype).newbyteorder("<"))
    return data.reshape(array["shape"]).astype(np.float64)


def rms(values: NDArray[np.float64]) -> float:
    return math.sqrt(np.mean(values**2))


def errors(root: Path, case: dict[str, int]) -> list[float]:
    """Relative RMS error of `o` and of `state` against the oracle, for each seed."""
    found = []
    for got, truth in zip(outputs(root, "worker.py", case), outputs(root, "oracle.py", case), strict=True):
        assert got.keys() == truth.keys() == {"o", "state"}
        for name in ("o", "state"):
            expected = decode(truth[name], "float64")
            found.append(rms(decode(got[name], "float32") - expected) / rms(expected))
    return found


class TestCorrectness:
    @pytest.mark.parametrize("case", CASES, ids=str)
    @pytest.mark.parametrize("arm", ["baseline", "neutral", "right"])
    def test_sound_kernels_agree_with_float64(self, tree: Tree, arm: str, case: dict[str, int]) -> None:
        assert max(errors(tree(arm), case)) < TOLERANCE

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_gate_shared_between_heads_is_far_off(self, tree: Tree, case: dict[str, int]) -> None:
        assert min(errors(tree("wrong"), case)) > 1e-2

    def test_kernel_that_remembers_the_gate_is_caught_also_when_timed(self, tree: Tree, tmp_path: Path) -> None:
        """The next token stands at the same address as the last one, in timed slices too."""
        root = copy(tmp_path / "stale")
        kernel = root / "kernels" / "kda_decode.c"
        text = kernel.read_text(encoding="utf-8")
        gate = "b_decay[i] = expf(rate * softplus(p_x[i] + p_dt_bias[i]));"
        assert gate in text
        remembering = (
            "{ static const float *from[8][KDA_MAX_K]; static float kept[8][KDA_MAX_K];"
            " if (from[pid_h][i] != p_x + i) { from[pid_h][i] = p_x + i;"
            " kept[pid_h][i] = expf(rate * softplus(p_x[i] + p_dt_bias[i])); }"
            " b_decay[i] = kept[pid_h][i]; }"
        )
        kernel.write_text(text.replace(gate, remembering), encoding="utf-8")
        build(root)
        assert min(errors(root, CASES[0])) > 1e-2
        request = timed(1, 3, repeat=20)
        (stale,), (sound,) = (
            converse(root, "worker.py", request),
            converse(tree("baseline"), "worker.py", request),
        )
        assert stale["check"] != pytest.approx(sound["check"], rel=1e-2)

    def test_reference_follows_the_recurrence_written_out_by_hand(self) -> None:
        """One head, K = 2, V = 1, numbers small enough to follow on paper."""
        program = (
            "import numpy as np; from reference import decode, log_decay; a = np.array\n"
            "g = log_decay(a([[[0.0, 1.0]]]), a([np.log(2.0)]), a([[0.0, -1.0]]))\n"
            "o, s = decode(a([[[[4.0], [8.0]]]]), a([[[1.0, 1.0]]]), a([[[3.0, 4.0]]]), a([[[2.0]]]), g,"
            " a([[0.5]]))\n"
            "print(g.ravel().tolist(), s.ravel().tolist(), o.ravel().tolist())"
        )
        ended = run(sys.executable, "-c", program, cwd=TARGET)
        g, state, o = json.loads("[" + ended.stdout.replace("] [", "], [") + "]")
        # softplus(0) = ln 2: both channels decay by 1/4, to the state (1, 2); the key is (0.6, 0.8).
        assert g == pytest.approx([-2 * math.log(2)] * 2)
        u = 0.5 * (2.0 - (0.6 * 1 + 0.8 * 2))
        assert state == pytest.approx([1 + 0.6 * u, 2 + 0.8 * u], rel=1e-6)
        assert o == pytest.approx([sum(state) / math.sqrt(2)], rel=1e-6)

    @pytest.mark.parametrize("arm", ["baseline", "right"])
    def test_slot_of_no_sequence_comes_back_untouched(self, tree: Tree, arm: str) -> None:
        case = {"batch": 2, "heads": 2, "k": 64, "v": 64, "steps": 8}
        root = tree(arm)
        for got, truth in zip(outputs(root, "worker.py", case), outputs(root, "oracle.py", case), strict=True):
            state, expected = decode(got["state"], "float32"), decode(truth["state"], "float64")
            equal = [np.array_equal(mine, theirs) for mine, theirs in zip(state, expected, strict=True)]
            assert equal.count(True) == 1

    def test_shapes_are_those_asked_for(self, tree: Tree) -> None:
        case = {"batch": 2, "heads": 3, "k": 32, "v": 64, "steps": 5}
        got = outputs(tree("baseline"), "worker.py", case)[0]
        assert got["o"]["shape"] == [5, 2, 3, 64]
        assert got["state"]["shape"] == [3, 3, 32, 64]


class TestProtocol:
    def test_check_follows_seed_and_params_and_nothing_else(self, tree: Tree) -> None:
        first, again, other_seed, longer = converse(
            tree("baseline"), "worker.py",
            timed(1, 7, repeat=20), timed(2, 7, repeat=20), timed(3, 8, repeat=20), timed(4, 7, repeat=21),
        )  # fmt: skip
        (fresh,) = converse(tree("baseline"), "worker.py", timed(9, 7, op="time", repeat=20))
        assert [r["slice"] for r in (first, again, other_seed, longer, fresh)] == [1, 2, 3, 4, 9]
        assert first["check"] == again["check"] == fresh["check"]
        for other in (other_seed, longer):
            pairs = list(zip(first["check"], other["check"], strict=True))
            assert any(abs(a - b) > 1e-3 * abs(a) for a, b in pairs)

    def test_check_tells_sound_arms_from_a_wrong_one(self, tree: Tree) -> None:
        request = timed(1, 3, repeat=50)
        base, neutral, right, wrong = (
            converse(tree(arm), "worker.py", request)[0]["check"] for arm in ("baseline", "neutral", "right", "wrong")
        )
        assert neutral == pytest.approx(base, rel=1e-5)
        assert right == pytest.approx(base, rel=1e-5)
        assert wrong != pytest.approx(base, rel=1e-2)

    def test_answers_one_by_one_and_ends_with_its_input(self, tree: Tree) -> None:
        worker = subprocess.Popen(
            [sys.executable, "worker.py"],
            cwd=tree("baseline"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            assert json.loads(worker.stdout.readline())["ready"] is True
            for number in (1, 2):
                worker.stdin.write(json.dumps(timed(number, number)) + "\n")
                worker.stdin.flush()
                assert json.loads(worker.stdout.readline())["slice"] == number
            worker.stdin.close()
            assert worker.wait(timeout=30) == 0

    @pytest.mark.parametrize("script", ["worker.py", "oracle.py"])
    @pytest.mark.parametrize(
        ("bad", "told"),
        [
            (timed(5, 1, op="dance"), "unknown op 'dance'"),
            (timed(5, 1, repeats=3), "unknown params for op 'time': repeats"),
            (timed(5, 1, op="outputs", repeat=3), "unknown params for op 'outputs': repeat"),
            (timed(5, 1, heads=0), "heads must be a positive integer, not 0"),
            (timed(5, -1), "seed must be a non-negative integer, not -1"),
            ({"slice": 5, "params": {}}, "seed must be"),
        ],
    )
    def test_bad_request_is_told_and_the_worker_goes_on(
        self, tree: Tree, script: str, bad: dict[str, Any], told: str
    ) -> None:
        refused, served = converse(tree("baseline"), script, bad, timed(6, 1, heads=2, k=16, v=32))
        assert refused.keys() == {"slice", "error"}
        assert refused["slice"] == 5
        assert told in refused["error"]
        assert served["slice"] == 6
        assert "check" in served

    @pytest.mark.parametrize("line", ["no json", "[1, 2]", '"text"'])
    def test_line_that_is_no_request_is_told(self, tree: Tree, line: str) -> None:
        refused, _ = converse(tree("baseline"), "worker.py", line, timed(2, 1, heads=2, k=16, v=32))
        assert refused["slice"] is None
        assert refused["error"]

    @pytest.mark.parametrize("shape", [{"v": 33}, {"k": 257}])
    def test_shape_the_kernel_refuses_is_an_error(self, tree: Tree, shape: dict[str, int]) -> None:
        (reply,) = converse(tree("baseline"), "worker.py", timed(1, 1, heads=2, **shape))
        assert "refuses" in reply["error"]

    def test_print_from_the_kernel_does_not_reach_the_protocol(self, tmp_path: Path) -> None:
        root = copy(tmp_path / "noisy")
        kernel = root / "kernels" / "kda_decode.c"
        noise = '{ printf("{}\\n"); fflush(stdout); }'
        entry = "int kda_decode_step(const kda_decode_args *args)\n{\n"
        loading = f"__attribute__((constructor)) static void noise(void) {noise}\n"
        text = kernel.read_text(encoding="utf-8")
        assert entry in text
        text = "#include <stdio.h>\n" + text.replace(entry, f"{loading}{entry}    {noise}\n")
        kernel.write_text(text, encoding="utf-8")
        (reply,) = converse(build(root), "worker.py", timed(1, 1, repeat=3))
        assert reply["slice"] == 1

    def test_kernel_that_yields_nan_is_an_error_when_timed_and_an_array_when_asked(self, tmp_path: Path) -> None:
        root = copy(tmp_path / "nan")
        kernel = root / "kernels" / "kda_decode.c"
        text = kernel.read_text(encoding="utf-8")
        assert "p_o[j] = b_o[j];" in text
        kernel.write_text(text.replace("p_o[j] = b_o[j];", "p_o[j] = NAN;"), encoding="utf-8")
        small = {"heads": 2, "k": 16, "v": 32}
        slice_, asked = converse(build(root), "worker.py", timed(1, 1, **small), timed(2, 1, op="outputs", **small))
        assert "not finite" in slice_["error"]
        assert np.isnan(decode(asked["outputs"]["o"], "float32")).all()

    def test_worker_without_a_library_never_says_ready(self, tmp_path: Path) -> None:
        ended = run(sys.executable, "worker.py", cwd=copy(tmp_path / "unbuilt"))
        assert ended.returncode != 0
        assert ended.stdout == ""
        assert "libkda.so" in ended.stderr


class TestOracle:
    def test_oracle_needs_no_kernel(self, tree: Tree, tmp_path: Path) -> None:
        root = copy(tmp_path / "bare")
        shutil.rmtree(root / "kernels")
        assert not (root / "build").exists()
        case = CASES[1]
        for bare, beside in zip(
            outputs(root, "oracle.py", case), outputs(tree("wrong"), "oracle.py", case), strict=True
        ):
            assert bare == beside

    def test_oracle_answers_timed_requests_with_the_same_check(self, tree: Tree) -> None:
        request = timed(1, 5, repeat=10)
        (mine,) = converse(tree("baseline"), "worker.py", request)
        (truth,) = converse(tree("baseline"), "oracle.py", request)
        assert mine["check"] == pytest.approx(truth["check"], rel=1e-5)


class TestInstructionCounts:
    @pytest.fixture
    def count(self, tree: Tree) -> Callable[[str], int]:
        if shutil.which("valgrind") is None:
            pytest.skip("valgrind is not installed")

        def instructions(arm: str) -> int:
            root = tree(arm)
            counted = run(
                "valgrind", "--tool=callgrind", "--toggle-collect=kda_decode_step",
                "--callgrind-out-file=build/callgrind.out", "build/bench_kda", cwd=root,
            )  # fmt: skip
            assert counted.returncode == 0, counted.stderr
            text = (root / "build" / "callgrind.out").read_text(encoding="utf-8")
            (total,) = re.findall(r"^summary: (\d+)$", text, re.MULTILINE)
            return int(total)

        return instructions

    def test_count_is_repeatable(self, count: Callable[[str], int]) -> None:
        assert count("baseline") == pytest.approx(count("baseline"), rel=1e-4)

    def test_right_patch_saves_at_least_a_tenth(self, count: Callable[[str], int]) -> None:
        assert count("right") <= 0.9 * count("baseline")

    def test_neutral_patch_changes_nothing(self, count: Callable[[str], int]) -> None:
        assert count("neutral") == pytest.approx(count("baseline"), rel=3e-3)

    def test_wrong_patch_is_tempting(self, count: Callable[[str], int]) -> None:
        assert count("wrong") <= count("right")


class TestBenchProgram:
    def test_sound_arms_print_the_same_checksum(self, tree: Tree) -> None:
        printed = {arm: run("build/bench_kda", cwd=tree(arm)).stdout for arm in ("baseline", "neutral", "right")}
        sums = [float(text.removeprefix("checksum ")) for text in printed.values()]
        assert sums == pytest.approx([sums[0]] * 3, rel=1e-4)


class TestScript:
    def test_proposals_are_complete_and_touch_the_kernel_only(self) -> None:
        script = tomllib.loads((TARGET / "scripts" / "hoist.toml").read_text(encoding="utf-8"))
        proposals = script["propose"]
        assert [p["patch"] for p in proposals] == ["wrong.patch", "neutral.patch", "right.patch"]
        for proposal in proposals:
            assert proposal.keys() == {
                "claim", "mechanism", "location", "question", "lever_family", "predicted", "falsifier",
                "probe", "patch",
            }  # fmt: skip
            assert proposal["predicted"].keys() == {"metric", "direction", "low", "high"}
            path, symbol = proposal["location"].split(":")
            assert symbol in (TARGET / path).read_text(encoding="utf-8")
            patch = (TARGET / "scripts" / proposal["patch"]).read_text(encoding="utf-8")
            assert set(re.findall(r"^(?:---|\+\+\+) [ab]/(\S+)", patch, re.MULTILINE)) == {path}


class TestProtocolPage:
    """The examples in the description of the protocol speak it."""

    @pytest.mark.parametrize(("language", "command"), [("python", (sys.executable,)), ("sh", ("sh",))])
    def test_example_speaks_the_protocol(self, tmp_path: Path, language: str, command: tuple[str, ...]) -> None:
        page = PROTOCOL_PAGE.read_text(encoding="utf-8")
        (code,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        (tmp_path / "example").write_text(code, encoding="utf-8")
        requests = [
            timed(3, 41, repeat=9),
            timed(4, 42, repeat=9),
            timed(5, 7, op="outputs"),
            timed(6, 41, repeat=9),
        ]
        ended = run(*command, "example", cwd=tmp_path, text_in="".join(json.dumps(r) + "\n" for r in requests))
        assert ended.returncode == 0, ended.stderr
        ready, first, other_seed, unknown, again = (json.loads(line) for line in ended.stdout.splitlines())
        assert ready == {"ready": True, "protocol": 1}
        assert [r["slice"] for r in (first, other_seed, unknown, again)] == [3, 4, 5, 6]
        assert first["check"] == again["check"]
        assert first["check"] != other_seed["check"]
        assert unknown.keys() == {"slice", "error"}
