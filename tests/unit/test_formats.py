"""Which format a file is: by its own beginning, whatever it is called, and never two ways."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from feedback.readers import Unreadable, formats

DATA = Path(__file__).resolve().parents[1] / "data"
SLICE = {"probe": "p", "arm": "baseline", "pair": 0, "block": 0, "position": 0, "seed": 1, "disturbed": False}
ARRAY = {"dtype": "float64", "shape": [30000], "data": base64.b64encode(bytes(240_000)).decode()}
OURS = {
    "slices": {"type": "slice", **SLICE, "record": {"duration_s": 0.1, "check": [1.0]}},
    "outputs": {"case": {}, "seed": 1, "arm": "candidate", "tolerance": 1.0, "outputs": {"o": ARRAY}, "truth": {}},
    "events": {"at_s": 1.5, "name": "gc_pause", "duration_s": 0.01},
    "parity_table": {"measure": "rms_ratio", "value": 1e-7},
}


@pytest.mark.parametrize("name", OURS)
def test_our_own_formats_by_their_first_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps(OURS[name]) + "\n")
    assert formats.detect(path).name == name


@pytest.mark.parametrize(
    ("file", "name"),
    [("load.jsonl", "load"), ("logprobs_q4_0.jsonl", "logprobs"), ("logprobs_q8_0.jsonl", "logprobs")],
)
def test_recorded_files_of_ours(file: str, name: str) -> None:
    assert formats.detect(DATA / "llamacpp" / file).name == name


def test_recorded_file_fits_one_format_only() -> None:
    for path in sorted(DATA.rglob("*")):
        if path.suffix in (".json", ".jsonl", ".xml", ".csv", ".out"):
            head = path.read_bytes()[: formats.HEAD_BYTES]
            fitting = [format.name for format in formats.FORMATS if format.fits(path, head)]
            assert len(fitting) <= (2 if fitting[:1] == ["load"] else 1), (path, fitting)  # a load file has slices


@pytest.mark.parametrize("text", ["{}", "[]", '{"results": []}', '{"name": "package"}'])
def test_file_of_no_known_format_says_which_are(text: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(Unreadable, match="no known format; known are load, slices"):
        formats.detect(path)
