"""Who may use the machine at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra_agent.halt import Halt, Halted
from infra_agent.turns import Turns

LONG_S = 10.0


def test_those_who_share_run_at_once() -> None:
    turns, met = Turns(), threading.Barrier(3, timeout=LONG_S)

    def work() -> None:
        with turns.shared():
            met.wait()  # passed only if all three are inside

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(work) for _ in range(3)]:
            future.result(LONG_S)


def test_who_is_alone_meets_nobody() -> None:
    turns, lock = Turns(), threading.Lock()
    inside: list[str] = []
    seen: list[tuple[str, ...]] = []

    def work(kind: str) -> None:
        for _ in range(200):
            with turns.alone() if kind == "alone" else turns.shared():
                with lock:
                    inside.append(kind)
                    seen.append(tuple(inside))
                with lock:
                    inside.remove(kind)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, kind) for kind in ("alone", "shared", "shared", "alone")]:
            future.result(LONG_S)
    assert len(seen) == 800
    assert all(len(who) == 1 for who in seen if "alone" in who)


def test_who_waits_to_be_alone_goes_before_those_who_come_later() -> None:
    turns = Turns()
    first_in, release, order = threading.Event(), threading.Event(), []

    def first() -> None:
        with turns.shared():
            first_in.set()
            release.wait(LONG_S)

    def alone() -> None:
        with turns.alone():
            order.append("alone")

    def later() -> None:
        with turns.shared():
            order.append("later")

    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(first)]
        assert first_in.wait(LONG_S)
        done.append(pool.submit(alone))
        while not turns._waiting:
            pass
        done.append(pool.submit(later))
        release.set()
        for future in done:
            future.result(LONG_S)
    assert order == ["alone", "later"]


def test_a_failure_inside_gives_the_turn_back() -> None:
    turns = Turns()
    for turn in (turns.alone, turns.shared):
        with pytest.raises(ValueError, match="broken"), turn():
            raise ValueError("broken")
    with turns.alone():
        pass
    with turns.shared():
        pass


def test_who_shares_and_wants_to_be_alone_waits_for_the_others_and_goes_on_sharing() -> None:
    turns, lock = Turns(), threading.Lock()
    alone: list[str] = []

    def work(name: str) -> None:
        with turns.shared():
            for _ in range(50):
                with turns.alone():  # two that share would wait for each other for good if they kept their shares
                    with lock:
                        alone.append(name)
                    assert len(alone) == 1
                    with lock:
                        alone.remove(name)

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(work, name) for name in "abc"]:
            future.result(LONG_S)


def test_what_is_halted_is_ended_and_nothing_new_begins() -> None:
    halt, ended = Halt(), []
    halt.check()
    with halt.ending(lambda: ended.append("first")):
        halt.halt()
        halt.halt()
        with pytest.raises(Halted):
            halt.check()
    halt.halt()
    assert ended == ["first", "first"]
