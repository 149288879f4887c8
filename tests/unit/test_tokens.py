"""Our token counter: its reading of GGUF against the `gguf` package, and the splitting rules.

That it agrees with the engine's own tokenizer is tested against the real server (tests/integration).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest

from sandboxes.tokens import SPLIT_RULES, TokenCounter, read_metadata

SPACE, NEWLINE = "\u0120", "\u010a"  # GPT-2's letters for the bytes 0x20 and 0x0a
LETTERS = [*(chr(code) for code in range(0x21, 0x7F)), SPACE, NEWLINE]
MERGED = ["he", "ll", "llo", "hello", SPACE + "w", SPACE + SPACE, "12", SPACE + "1"]
TOKENS = ["<|end|>", *LETTERS, *MERGED]
KINDS = [3, *(1 for _ in TOKENS[1:])]


def write_gguf(path: Path, kind: str = "gpt2", rule: str = "smollm", tokens: list[str] | None = None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(TOKENS if tokens is None else tokens)
    writer.add_token_types(KINDS)
    writer.add_token_scores([0.5] * 3)
    writer.add_bool("a.flag", True)
    writer.add_uint64("a.large", 1 << 40)
    writer.add_array("a.pairs", [[1, 2], [3, 4]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def names(counter: TokenCounter, text: str) -> list[str]:
    return [TOKENS[token] for token in counter.encode(text)]


@pytest.fixture
def counter(tmp_path: Path) -> TokenCounter:
    return TokenCounter.from_gguf(write_gguf(tmp_path / "tiny.gguf"))


def test_metadata_is_what_the_gguf_package_reads(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    ours = read_metadata(path)
    theirs = {
        name: field.contents()
        for name, field in gguf.GGUFReader(path).fields.items()
        if not name.startswith("GGUF.") and name != "a.pairs"
    }
    assert {name: ours[name] for name in theirs} == theirs
    assert ours["a.pairs"] == [[1, 2], [3, 4]]


def test_merges_apply_in_the_order_of_the_vocabulary(counter: TokenCounter) -> None:
    assert names(counter, "hello") == ["hello"]
    assert names(counter, "hell") == ["he", "ll"]
    assert names(counter, "hello world") == ["hello", SPACE + "w", "o", "r", "l", "d"]
    assert counter.count("hello world") == 6


def test_smollm_cuts_out_each_digit_and_keeps_the_white_space_before_it(counter: TokenCounter) -> None:
    assert names(counter, "12") == ["1", "2"]
    assert names(counter, "a 1") == ["a", SPACE, "1"]
    assert names(counter, "a  1") == ["a", SPACE + SPACE, "1"]
    assert names(counter, "a  w") == ["a", SPACE, SPACE + "w"]


def test_gpt2_joins_digits(tmp_path: Path) -> None:
    counter = TokenCounter.from_gguf(write_gguf(tmp_path / "tiny.gguf", rule="gpt-2"))
    assert names(counter, "12 1") == ["12", SPACE + "1"]


def test_special_tokens_are_text(counter: TokenCounter) -> None:
    assert names(counter, "<|end|>") == list("<|end|>")


def test_bytes_without_a_token_are_dropped_as_the_engine_drops_them(counter: TokenCounter) -> None:
    assert names(counter, "a\x00b") == ["a", "b"]
    assert counter.count("") == 0


def test_decoding_gives_the_text_back(counter: TokenCounter) -> None:
    assert counter.decode(counter.encode("hello  world 12\n")) == "hello  world 12\n"


def test_counter_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first = TokenCounter.from_gguf(path)
    assert TokenCounter.from_gguf(path) is first
    os.utime(path, ns=(1, 1))
    assert TokenCounter.from_gguf(path) is not first


@pytest.mark.parametrize(
    ("kind", "rule", "named"),
    [("llama", "default", "'llama'"), ("gpt2", "qwen2", "'qwen2'"), ("bert", "jina", "'bert'")],
)
def test_other_tokenizers_are_refused_by_name(tmp_path: Path, kind: str, rule: str, named: str) -> None:
    with pytest.raises(ValueError, match=rf"tiny\.gguf: can't count tokens.*{named}.*{next(iter(SPLIT_RULES))}"):
        TokenCounter.from_gguf(write_gguf(tmp_path / "tiny.gguf", kind, rule))


def test_vocabulary_whose_parts_differ_in_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="differ in length"):
        TokenCounter.from_gguf(write_gguf(tmp_path / "tiny.gguf", tokens=TOKENS[:-1]))


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TokenCounter.from_gguf(tmp_path / "absent.gguf")


def test_cut_off_file_is_refused_at_every_length(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    head = 600
    for length in range(0, head, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut\.gguf"):
            read_metadata(path)


@pytest.mark.parametrize(
    "data",
    [
        b"<html>",
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60),  # a key of an exabyte
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9) * 3,
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2) + b"\xff\xfe" + struct.pack("<IB", 0, 1),
    ],
)
def test_rubbish_is_refused_without_taking_memory(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rubbish.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"rubbish\.gguf"):
        read_metadata(path)


def test_arrays_nested_without_end_are_refused(tmp_path: Path) -> None:
    nested: Any = struct.pack("<IQ", 9, 1) * 5000
    path = tmp_path / "deep.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9) + nested)
    with pytest.raises(ValueError, match=r"deep\.gguf"):
        read_metadata(path)
