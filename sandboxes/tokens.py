"""Counts tokens on our side of the wall, with the vocabulary that the weights themselves carry.

Reads the metadata of a GGUF file (not its tensors) and builds a tiktoken Encoding of its byte-level BPE.
Only tokenizers whose splitting rule is known here are accepted: a guess would make every count wrong.
Special tokens are never produced: the text `<|im_end|>` counts as the characters it is.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import tiktoken

SPLIT_RULES = {
    "smollm": (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"),
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}
"""How text is cut before the merges, by `tokenizer.ggml.pre`. SmolLM cuts out every digit first and applies
GPT-2's rule to what lies between, so white space before a digit stays in one piece."""

NORMAL_TOKEN = 1
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LONGEST_STRING = 1 << 24
_LONGEST_ARRAY = 1 << 24

Value = str | int | float | bool | list["Value"]


class TokenCounter:
    """Encodes and counts text exactly as the engine's tokenizer does, special tokens left out."""

    def __init__(self, tokens: list[str], kinds: list[int], rule: str) -> None:
        letters = _byte_letters()
        ranks: dict[bytes, int] = {}
        for rank, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
            if kind == NORMAL_TOKEN:
                ranks[bytes(letters[letter] for letter in token)] = rank
        # tiktoken needs all 256 bytes. Those that the vocabulary lacks get ranks above it; the engine drops
        # them, and so do we.
        for byte in range(256):
            ranks.setdefault(bytes([byte]), len(tokens) + byte)
        self.vocabulary_size = len(tokens)
        self._encoding = tiktoken.Encoding("weights", pat_str=rule, mergeable_ranks=ranks, special_tokens={})

    @classmethod
    def from_gguf(cls, path: Path) -> TokenCounter:
        """The tokenizer of a GGUF file, kept for the life of this process. Raises OSError if the file can't
        be read, ValueError if it is not GGUF or its tokenizer is of a kind not known here."""
        stat = path.stat()
        return _load(path, stat.st_mtime_ns, stat.st_size)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without any special token before or after."""
        ids = self._encoding.encode_ordinary(text)
        return [token for token in ids if token < self.vocabulary_size]

    def count(self, text: str) -> int:
        """How many tokens `text` is."""
        return len(self.encode(text))

    def decode(self, ids: list[int]) -> str:
        """The text of token ids; bytes that are no text become U+FFFD. Raises KeyError for an unknown id."""
        return self._encoding.decode(ids)


@lru_cache(maxsize=4)
def _load(path: Path, mtime_ns: int, size_bytes: int) -> TokenCounter:
    """One counter a file and version of it: the time and size only tell versions apart."""
    metadata = read_metadata(path)
    kind, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or rule not in SPLIT_RULES:
        raise ValueError(
            f"{path.name}: can't count tokens of a {kind!r} tokenizer with the splitting rule {rule!r}; "
            f"known are 'gpt2' with {', '.join(map(repr, SPLIT_RULES))}"
        )
    tokens, kinds = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(kinds, list) or len(tokens) != len(kinds):
        raise ValueError(f"{path.name}: the vocabulary is missing or its parts differ in length")
    return TokenCounter([str(token) for token in tokens], [int(str(kind)) for kind in kinds], SPLIT_RULES[str(rule)])


def read_metadata(path: Path) -> dict[str, Value]:
    """The key-value pairs at the head of a GGUF file (format v2 or v3, little-endian). Raises OSError or
    ValueError. The `gguf` package reads the same in 1.6 s for this vocabulary; this takes 0.05 s."""
    with path.open("rb") as file:
        try:
            if file.read(4) != b"GGUF":
                raise ValueError(f"{path.name}: not a GGUF file")
            version, _, pairs = _unpack(file, "IQQ")
            if version not in (2, 3):
                raise ValueError(f"{path.name}: GGUF version {version} is not known")
            return {_string(file): _value(file, _unpack(file, "I")[0]) for _ in range(int(pairs))}
        except (struct.error, KeyError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path.name}: broken GGUF metadata near byte {file.tell()}") from error


def _unpack(file: BinaryIO, kinds: str) -> tuple[int, ...]:
    return struct.unpack("<" + kinds, file.read(struct.calcsize("<" + kinds)))


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    if length > _LONGEST_STRING:
        raise KeyError("string length")
    data = file.read(length)
    if len(data) < length:
        raise KeyError("end of file")
    return data.decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Value:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _unpack(file, _SCALARS[kind])[0]
    (inner,) = _unpack(file, "I")
    (length,) = _unpack(file, "Q")
    if length > _LONGEST_ARRAY:
        raise KeyError("array length")
    if inner in _SCALARS:
        return list(_unpack(file, f"{length}{_SCALARS[inner]}"))
    return [_value(file, inner) for _ in range(length)]


def _byte_letters() -> dict[str, int]:
    """GPT-2's writing of bytes as printable letters: letter to byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
