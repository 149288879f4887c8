"""The launch file: read the knobs' values and change them as a person would, with the smallest diff.

The only home of tomlkit: comments, order and formatting of everything that is not changed stay as they are.
"""

from __future__ import annotations

import math
import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from feedback.observations import Scalar
from infra_agent.errors import TargetInvalid
from infra_agent.places import LARGEST_INTEGER
from infra_agent.target import TargetSpec, values_at


def read_knobs(tree: Path, spec: TargetSpec) -> dict[str, Scalar | None]:
    """The knobs' values in the launch file of `tree`; None where a knob is absent. Empty without knobs.

    Raises TargetInvalid if the file is missing, not valid TOML, reached through a symbolic link, or holds
    something other than a plain value where a knob stands.
    """
    if not spec.knobs:
        return {}
    path = _launch_path(tree, spec)
    data = _parse(_read(path), path.name).unwrap()
    for knob in spec.knobs:
        _check_place(data, knob.key, path.name)
    return values_at(data, spec)


def rewrite(tree: Path, spec: TargetSpec, knobs: Mapping[str, Scalar | None]) -> None:
    """Set knobs in the launch file of `tree`; None removes the key, which leaves it to the engine.

    A knob that already has its value is not touched, so doing it twice changes nothing. Raises TargetInvalid
    as `read_knobs` does, and for an unknown knob or a value that TOML can't hold; then nothing is written.
    """
    if not knobs:
        return
    path = _launch_path(tree, spec)
    before = _read(path)
    document = _parse(before, path.name)
    for name, value in knobs.items():
        knob = spec.knob(name)
        if knob is None:
            raise TargetInvalid(f"unknown knob {name!r}; known are: {', '.join(k.name for k in spec.knobs)}")
        _check_value(name, value)
        _check_place(document.unwrap(), knob.key, path.name)
        try:
            _put(document, knob.key.split("."), value)
        except TOMLKitError as error:
            raise TargetInvalid(f"{path.name}: {name} = {value!r} can't be written: {error}") from error
    after = tomlkit.dumps(document)
    _check_result(after, spec, knobs, path.name)
    if after != before:
        _write(path, after)


def _launch_path(tree: Path, spec: TargetSpec) -> Path:
    if spec.launch_file is None:
        raise TargetInvalid("the target has no [launch_file]; add one to target.toml to use knobs")
    relative = PurePosixPath(spec.launch_file.path)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise TargetInvalid(f"launch_file: {str(relative)!r} must be a path inside the target")
    path = tree
    for part in relative.parts:
        path = path / part
        if path.is_symlink():
            raise TargetInvalid(f"launch_file: {relative}: {part!r} is a symbolic link; use a real file")
    if not path.is_file():
        raise TargetInvalid(f"launch_file: {relative} is no file of the target; create it or mend the path")
    return path


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetInvalid(f"{path.name} can't be read: {error}") from error


def _parse(text: str, name: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except ParseError as error:
        raise TargetInvalid(f"{name}:{error.line}: not valid TOML: {error}") from error
    except TOMLKitError as error:
        raise TargetInvalid(f"{name}: not valid TOML: {error}") from error


def _check_place(data: Mapping[str, Any], key: str, name: str) -> None:
    """Refuse a launch file whose shape does not fit the knob's key."""
    *tables, last = key.split(".")
    place: Any = data
    for part in tables:
        place = place.get(part, {})
        if not isinstance(place, dict):
            raise TargetInvalid(f"{name}: {part!r} must be a table, because a knob's key is {key!r}")
    value = place.get(last)
    if value is not None and not isinstance(value, str | int | float | bool):
        raise TargetInvalid(f"{name}: {key!r} holds {type(value).__name__}; a knob holds a plain value")


def _check_value(name: str, value: Scalar | None) -> None:
    reason = ""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            reason = "it is not valid text"
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        reason = "it does not fit 64 bits"
    elif isinstance(value, float) and not math.isfinite(value):
        reason = "it is not a finite number"
    if reason:
        raise TargetInvalid(f"{name} = {value!r} can't stand in a launch file: {reason}")


def _put(table: Any, key: list[str], value: Scalar | None) -> None:
    first, *rest = key
    if rest:
        if first not in table:
            if value is None:
                return
            table[first] = tomlkit.table()
        _put(table[first], rest, value)
    elif value is None:
        if first in table:
            del table[first]
    elif first not in table or not _same(table[first], value):
        table[first] = value


def _same(old: Any, new: Scalar) -> bool:
    plain = old.unwrap() if hasattr(old, "unwrap") else old
    return type(plain) is type(new) and bool(plain == new)


def _check_result(text: str, spec: TargetSpec, knobs: Mapping[str, Scalar | None], name: str) -> None:
    """The written text must say what was asked, to any TOML reader."""
    try:
        found = values_at(tomllib.loads(text), spec)
    except tomllib.TOMLDecodeError as error:
        raise TargetInvalid(f"{name}: this file's layout can't be edited safely: {error}") from error
    wrong = [k for k, v in knobs.items() if found[k] != v or type(found[k]) is not type(v)]
    if wrong:
        raise TargetInvalid(f"{name}: {', '.join(wrong)} can't be set in this file's layout; simplify it")


def _write(path: Path, text: str) -> None:
    """Replace the file in one step; a hard link elsewhere keeps the old contents."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
        Path(temporary).chmod(path.stat().st_mode & 0o777)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
