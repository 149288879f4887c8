"""Serve GGUF weights with llama.cpp over a Unix socket, launched as `launch.toml` beside this file says.

    python serve.py --socket /scratch/server.sock --model weights.gguf [--launch launch.toml]

Every key of `launch.toml` is optional: an absent key leaves the engine's own default alone. Keys may stand
at the top or in sections ([threads], [batch], ...); the section names carry no meaning. The engine's log
goes to standard error. The server stops on SIGTERM or SIGINT, and with `--until-eof` also at the end of
standard input.

Exit status: 0 stopped, 2 the launch file is wrong (unknown key, wrong type, out of range), 3 the engine
refused the settings. For 2 and 3 the last line of standard error says why in one sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import threading
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

WRONG_LAUNCH_FILE = 2
REFUSED_BY_ENGINE = 3
STARTED = b"\0started\n"
"""What the serving process writes once, where its parent reads its log."""
Stop = Callable[[], None]
TALKATIVE, BRIEF = 4, 3
"""Log levels: while starting, what was set up (threads, context, caches); afterwards six lines a request.
The talkative level would list the whole prompt cache for each request."""


class LaunchError(Exception):
    """The launch file says something that can't be passed to the engine."""


class Whole(NamedTuple):
    """A whole number in a closed range."""

    least: int
    most: int

    def check(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise LaunchError(f"{key} must be a whole number, not {value!r}")
        if not self.least <= value <= self.most:
            raise LaunchError(f"{key} must be from {self.least} to {self.most}, not {value}")
        return value


class Chunk(NamedTuple):
    """A length in tokens: 0 for never, or no shorter than `least`."""

    least: int

    def check(self, key: str, value: object) -> int:
        length = Whole(0, 1 << 20).check(key, value)
        if 0 < length < self.least:
            raise LaunchError(f"{key} must be 0 or at least {self.least}: shorter chunks give wrong answers")
        return length


class Flag(NamedTuple):
    """true or false."""

    def check(self, key: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise LaunchError(f"{key} must be true or false, not {value!r}")
        return value


class Choice(NamedTuple):
    """One of some words."""

    words: tuple[str, ...]

    def check(self, key: str, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise LaunchError(f"{key} must be one of {', '.join(self.words)}, not {value!r}")
        return value


CACHE_TYPES = Choice(("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"))
THREADS = Whole(1, 512)

DOMAINS: dict[str, Whole | Chunk | Flag | Choice] = {
    "threads": THREADS,
    "threads_batch": THREADS,
    "threads_http": Whole(1, 256),
    "spin_count": Whole(0, 1_000_000),
    "batch": Whole(1, 1 << 20),
    "ubatch": Whole(1, 1 << 20),
    "flash_attention": Choice(("auto", "on", "off")),
    "cache_type_k": CACHE_TYPES,
    "cache_type_v": CACHE_TYPES,
    "context": Whole(0, 1 << 24),
    "parallel": Whole(1, 4096),
    "kv_unified": Flag(),
    "cont_batching": Flag(),
    "cache_prompt": Flag(),
    "cache_reuse": Chunk(64),
    "cache_ram_mib": Whole(-1, 1 << 20),
    "load_mode": Choice(("auto", "none", "mmap", "mlock", "mmap_mlock", "direct_io")),
}

FIELDS = {
    "threads": "cpuparams.n_threads",
    "threads_batch": "cpuparams_batch.n_threads",
    "threads_http": "n_threads_http",
    "batch": "n_batch",
    "ubatch": "n_ubatch",
    "context": "n_ctx",
    "parallel": "n_parallel",
    "kv_unified": "kv_unified",
    "cont_batching": "cont_batching",
    "cache_prompt": "cache_prompt",
    "cache_reuse": "n_cache_reuse",
    "cache_ram_mib": "cache_ram_mib",
}
"""Keys that are one plain field of the engine's parameters."""

ENVIRONMENT = {"spin_count": "GOMP_SPINCOUNT"}
"""How often an idle compute thread polls before it sleeps. This build computes with OpenMP, which reads it
from the environment as it is loaded; the engine's own `poll` fields do nothing. The range is closed above,
because a server that polled for seconds would slow down everybody else on the machine."""


def read_launch(path: Path) -> dict[str, Any]:
    """The settings of a launch file as one flat, checked mapping. Raises LaunchError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LaunchError(f"cannot be read: {error}") from error
    settings: dict[str, Any] = {}
    for name, value in document.items():
        for key, entry in value.items() if isinstance(value, dict) else [(name, value)]:
            if key not in DOMAINS:
                raise LaunchError(f"unknown key {key!r}; known are {', '.join(DOMAINS)}")
            if key in settings:
                raise LaunchError(f"{key} is set twice")
            settings[key] = DOMAINS[key].check(key, entry)
    return settings


def parameters(engine: Any, settings: dict[str, Any]) -> Any:
    """The engine's parameters: its own defaults, and the settings over them."""
    params = engine.CommonParams()
    for key, field in FIELDS.items():
        if key in settings:
            *path, last = field.split(".")
            owner = params
            for name in path:
                owner = getattr(owner, name)
            setattr(owner, last, settings[key])
    if "flash_attention" in settings:
        word = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}[settings["flash_attention"]]
        params.flash_attn_type = getattr(engine.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{word}")
    for key in ("cache_type_k", "cache_type_v"):
        if key in settings:
            setattr(params, key, getattr(engine.ggml_type, f"GGML_TYPE_{settings[key].upper()}"))
    if "load_mode" in settings:
        params.load_mode = getattr(engine.llama_load_mode, f"LLAMA_LOAD_MODE_{settings['load_mode'].upper()}")
    return params


def log_switch(engine: Any) -> Callable[[int], object]:
    """The engine's function that sets the log level of a running server, which has no binding of its own."""
    library = ctypes.CDLL(engine.xllamacpp.__file__)
    switch: Callable[[int], object] = library["_Z30common_log_set_verbosity_tholdi"]
    return switch


def serve(settings: dict[str, Any], socket: Path, model: Path, started: Callable[[], None], stop: Stop) -> int:
    """Start the engine, say so, and serve until `stop` returns. The engine may also end the process itself."""
    for key, variable in ENVIRONMENT.items():
        if key in settings:
            os.environ[variable] = str(settings[key])
    os.environ["GGML_NO_BACKTRACE"] = "1"

    import xllamacpp

    params = parameters(xllamacpp, settings)
    params.model.path = str(model)
    params.hostnames = [str(socket)]
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.verbosity = TALKATIVE
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return REFUSED_BY_ENGINE
    with contextlib.suppress(AttributeError):  # another build of the engine: its log stays talkative
        log_switch(xllamacpp)(BRIEF)
    started()
    stop()
    del server
    return 0


def wait_for_the_end(until_eof: bool) -> None:
    """Return on SIGTERM or SIGINT or, if asked, at the end of standard input."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def watch_input() -> None:
        while os.read(0, 4096):
            pass
        stop.set()

    if until_eof:
        threading.Thread(target=watch_input, daemon=True).start()
    stop.wait()


def watch_start(reader: int) -> tuple[bool, str]:
    """Copy what the starting engine says to standard error until it has started or ended: whether it has
    started and, if not, the first error that it named or else its last words."""
    first_error = last = ""
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if line == STARTED:
                return True, ""
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            words = line.decode("utf-8", "replace").strip()
            last = words or last
            stamp, _, said = words.partition(" ")
            level, _, said = said.partition(" ")
            if not first_error and stamp[:1].isdigit() and level == "E":
                first_error = said.strip()
    return False, first_error or last


def main() -> int:
    """Serve in a child process, so that an engine that aborts can't take its reason with it."""
    parser = argparse.ArgumentParser(description="Serve weights with llama.cpp over a Unix socket.")
    parser.add_argument("--socket", required=True, type=Path)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--launch", type=Path, default=Path(__file__).with_name("launch.toml"))
    parser.add_argument("--until-eof", action="store_true")
    options = parser.parse_args()
    try:
        settings = read_launch(options.launch)
    except LaunchError as error:
        print(f"{options.launch.name}: {error}", file=sys.stderr)
        return WRONG_LAUNCH_FILE

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        stderr = os.dup(2)
        os.dup2(writer, 2)
        os.close(writer)

        def started() -> None:
            os.write(2, STARTED)
            os.dup2(stderr, 2)

        stop = partial(wait_for_the_end, options.until_eof)
        return serve(settings, options.socket, options.model, started, stop)

    os.close(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    has_started, reason = watch_start(reader)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if not has_started:
        print(f"{options.launch.name}: the engine refused these settings: {reason}", file=sys.stderr)
        return REFUSED_BY_ENGINE
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
