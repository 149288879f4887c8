"""Sampling profiles by thread and innermost frame."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedback.spans import Frame, Stacks

_IDS = re.compile(r"\s*\(?\b(0x[0-9a-f]+|\d{3,})\b\)?", re.I)
_BLOCKING_FILES = re.compile(
    r"(^|[/\\])(threading|queue|selectors|socket|ssl|subprocess|connection|popen_fork|synchronize|base_events|"
    r"unix_events|_base|thread|process)\.py$"
)
_BLOCKING_CALLS = re.compile(
    r"(^|[.:_])(wait|_wait_for_tstate_lock|join|get|put|acquire|accept|select|poll|recv\w*|read\w*|sleep|nanosleep|"
    r"epoll_wait|futex\w*|_worker|_recv\w*|pthread_cond_\w+|sem_wait|ppoll)(@.*)?$",
    re.I,
)
_IDLE_NATIVE = re.compile(
    r"^_{0,2}(nanosleep|clock_nanosleep|epoll_wait|epoll_pwait|futex_\w+|pthread_cond_\w*wait\w*|sem_\w*wait\w*|ppoll|"
    r"poll|select|accept4?|recvfrom|recvmsg)(@.*)?$"
)
NAMELESS = "thread"


class Leaf(NamedTuple):
    """An innermost frame in a thread."""

    thread: str
    frame: Frame

    @property
    def place(self) -> str:
        """`function (file:line)`, as far as known."""
        return place(self.frame)


def place(frame: Frame) -> str:
    """`function (file:line)`, as far as known."""
    name = frame.file.rsplit("/", 1)[-1]
    line = f"{name}:{frame.line}" if frame.line else name
    return f"{frame.function[:80]} ({line})" if line else frame.function[:80]


def thread_name(name: str) -> str:
    """A thread's name without ids, which differ between runs."""
    return _IDS.sub("", name).strip() or NAMELESS


def is_blocked(frame: Frame) -> bool:
    """Whether a thread in this frame sleeps in the kernel until someone wakes it. Samplers that read a thread's state
    from outside often take such a thread for a running one."""
    if not frame.file or frame.line is None:
        return bool(_IDLE_NATIVE.match(frame.function))
    return bool(_BLOCKING_FILES.search(frame.file) and _BLOCKING_CALLS.search(frame.function))


def counts(stacks: Stacks) -> npt.NDArray[np.float64] | None:
    """Samples of each stack. Seconds count as samples where they are multiples of one interval; None if nothing can
    be counted."""
    if stacks.unit == "samples":
        return stacks.weight
    positive = stacks.weight[stacks.weight > 0]
    if stacks.unit != "s" or not len(positive):
        return None
    n = stacks.weight / positive.min()
    return np.rint(n) if (np.abs(n - np.rint(n)) < 0.02).all() else None


def working(stacks: Stacks) -> Stacks:
    """The profile without imports, which last as long however long the run is, and without blocked threads."""
    imports = np.array([f.file.startswith("<frozen importlib") for f in stacks.frames] or [False])
    blocked = np.array([is_blocked(f) for f in stacks.frames] or [False])
    keep = [bool(s) and not blocked[s[-1]] and not imports[list(s)].any() for s in stacks.stacks]
    some = np.array(keep, dtype=np.bool_)
    return replace(
        stacks, stacks=tuple(s for s, k in zip(stacks.stacks, keep, strict=True) if k),
        thread=stacks.thread[some], weight=stacks.weight[some],
    )  # fmt: skip


def leaves(stacks: Stacks) -> dict[Leaf, float]:
    """Weight by thread and innermost frame, most first."""
    threads = [thread_name(t) for t in stacks.threads]
    found: dict[Leaf, float] = {}
    for stack, thread, weight in zip(stacks.stacks, stacks.thread.tolist(), stacks.weight.tolist(), strict=True):
        if stack:
            leaf = Leaf(threads[thread], stacks.frames[stack[-1]])
            found[leaf] = found.get(leaf, 0.0) + weight
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def callers(stacks: Stacks, leaf: Leaf) -> list[str]:
    """`file:line` of the frames that call a leaf, most weight first."""
    found: dict[str, float] = {}
    for stack, thread, weight in zip(stacks.stacks, stacks.thread.tolist(), stacks.weight.tolist(), strict=True):
        if len(stack) > 1 and stacks.frames[stack[-1]] == leaf.frame and \
                thread_name(stacks.threads[thread]) == leaf.thread:  # fmt: skip
            caller = stacks.frames[stack[-2]]
            if caller.file:
                at = f"{caller.file.rsplit('/', 1)[-1]}:{caller.line}"
                found[at] = found.get(at, 0.0) + weight
    return [at for at, weight in sorted(found.items(), key=lambda item: -item[1]) if weight > 0.1 * sum(found.values())]
