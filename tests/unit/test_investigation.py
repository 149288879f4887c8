"""Which measurements of the parent can be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from infra_agent.investigation import MAX_POINTS, InvestigationRefused, parameters, points
from infra_agent.target import TargetSpec

SPEC = TargetSpec.model_validate(
    {
        "schema": 1, "name": "example", "description": "an example", "editable": ["src"],
        "objective": {"metric": "slice_time_s", "direction": "minimize", "probe": "bench"},
        "server": {"command": ["serve"]},
        "probes": [
            {"name": "bench", "kind": "microbench", "method": "slices", "worker": ["w"],
             "params": {"batch": 1, "scale": 0.5, "form": "chunked", "fused": True}},
            {"name": "load", "kind": "load", "method": "load", "traffic": "t.json", "tokenizer": "t.gguf"},
            {"name": "outputs", "kind": "parity", "method": "outputs", "worker": ["w"], "oracle": ["o"],
             "cases": [{"batch": 1, "heads": 8}, {"batch": 4, "heads": 8}], "tolerance": 1e-6},
            {"name": "count", "kind": "microbench", "method": "callgrind", "command": ["c"]},
            {"name": "trace", "kind": "trace", "method": "command", "command": ["t", "{param:batch}", "{param:form}"],
             "params": {"batch": 1, "form": "all"}},
            {"name": "events", "kind": "events", "method": "events", "during": "load"},
            {"name": "secret", "kind": "correctness", "method": "command", "command": ["s"], "gate": True,
             "hidden": True},
        ],
    }
)  # fmt: skip


def test_every_combination_is_a_point_with_the_rest_as_the_target_says() -> None:
    found = points(SPEC, "bench", {"batch": (1, 16), "form": ("chunked", "recurrent")})
    assert [(p.case["batch"], p.case["form"]) for p in found] == [
        (1, "chunked"), (1, "recurrent"), (16, "chunked"), (16, "recurrent")
    ]  # fmt: skip
    assert all(p.case["scale"] == 0.5 and getattr(p.probe, "params", None) == p.case for p in found)


def test_without_parameters_the_probe_runs_as_it_is() -> None:
    (bench,) = points(SPEC, "bench", {})
    assert bench.probe == SPEC.probe("bench")
    (count,) = points(SPEC, "count", {})
    assert count.case == {}


def test_a_load_and_a_case_of_outputs_can_be_chosen() -> None:
    (load,) = points(SPEC, "load", {"streams": (8,)})
    assert (load.case["streams"], getattr(load.probe, "streams", 0)) == (8, 8)
    (outputs,) = points(SPEC, "outputs", {"batch": (32,)})
    assert getattr(outputs.probe, "cases", ()) == ({"batch": 32, "heads": 8},)
    assert parameters(SPEC.probe("outputs")) == {"batch": None, "heads": None}


def test_parameters_of_a_command_stand_in_it() -> None:
    one, two = points(SPEC, "trace", {"batch": (2, 3), "form": ("all-at_once.1",)})
    assert getattr(one.probe, "filled", ()) == ("t", "2", "all-at_once.1")
    assert (two.case, getattr(two.probe, "filled", ())[1]) == ({"batch": 3, "form": "all-at_once.1"}, "3")


@pytest.mark.parametrize("word", ["a b", "$(id)", "--out=/x", "../x", "", "{param:batch}", "a;b", "a" * 65])
def test_what_goes_into_a_command_is_one_plain_word(word: str) -> None:
    with pytest.raises(InvestigationRefused, match="one plain word"):
        points(SPEC, "trace", {"form": (word,)})


@pytest.mark.parametrize(
    ("probe", "params", "said"),
    [
        ("nothing", {}, "no probe 'nothing'"),
        ("secret", {}, "no probe 'secret'"),
        ("events", {}, "no probe 'events'"),
        ("bench", {"size": (1,)}, "no parameter 'size'; it has: batch, scale, form, fused"),
        ("count", {"batch": (1,)}, "it has: none"),
        ("bench", {"batch": ()}, "at least one value"),
        ("bench", {"batch": ("1",)}, "another kind"),
        ("bench", {"batch": (True,)}, "another kind"),
        ("bench", {"fused": (1,)}, "another kind"),
        ("bench", {"form": (False,)}, "another kind"),
        ("bench", {"batch": (1.5,)}, "whole number"),
        ("bench", {"batch": (0,)}, "above 0"),
        ("bench", {"batch": (10**9,)}, "not above"),
        ("load", {"streams": (1000,)}, "not above 64"),
        ("bench", {"batch": tuple(range(1, MAX_POINTS + 2))}, f"at most {MAX_POINTS}"),
    ],
)
def test_what_can_not_be_asked_says_why(probe: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(InvestigationRefused, match=said):
        points(SPEC, probe, params)
