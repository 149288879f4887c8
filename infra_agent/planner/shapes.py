"""The tools as a model is told of them: as functions, or in words and as one JSON schema that only a well-formed
call fits, with this target's knobs, probes, metrics and lever families as its only values.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Container, Sequence
from typing import Any

from infra_agent.fields import LEVER_FAMILIES
from infra_agent.investigation import InvestigationRefused, parameters, points
from infra_agent.levers import families
from infra_agent.planner.discipline import known_metrics
from infra_agent.planner.forms import ProposeChange, schema
from infra_agent.target import Knob, TargetSpec

MOST_CHARACTERS = 240
"""Of a statement in JSON mode: a weak model under a grammar ends a text only when it must."""
MOST_ITEMS = 8
Schema = dict[str, Any]


def call_schema(
    definitions: Sequence[dict[str, Any]], spec: TargetSpec, evidence: Sequence[str] = (), only: Container[str] = ()
) -> Schema:
    """The schema of one call as a JSON object: `{"tool": ..., "arguments": {...}}`. With `only`, of no other tools.
    Where there is no code to cite, `evidence` is all that a proposal may rest on, beside the knobs."""
    calls = []
    for definition in definitions:
        function = definition["function"]
        if only and function["name"] not in only:
            continue
        arguments = _narrowed(function["name"], function["parameters"], spec, evidence)
        calls.append(_object({"tool": {"type": "string", "enum": [function["name"]]}, "arguments": arguments}))
    return {"anyOf": calls}


def described(definitions: Sequence[dict[str, Any]]) -> str:
    """The tools in words, each with its arguments as JSON schemas; those that may be left out are marked with `?`."""
    lines = []
    for definition in definitions:
        function = definition["function"]
        form = _plain(function["parameters"])
        needed = form.get("required", [])
        told = {name if name in needed else f"{name}?": value for name, value in form["properties"].items()}
        lines.append(f"- {function['name']}: {function['description']}")
        lines.append(f"  arguments: {json.dumps(told, separators=(',', ':'))}")
    return "\n".join(lines)


def _narrowed(name: str, form: Schema, spec: TargetSpec, evidence: Sequence[str]) -> Schema:
    """The arguments of a tool with this target's own names in the place of free words."""
    arguments = copy.deepcopy(form)
    properties = arguments["properties"]
    match name:
        case "propose":
            _narrow_proposal(arguments, spec, evidence)
        case "amend":
            whole = _narrowed("propose", schema(ProposeChange), spec, evidence)
            properties["changes"] = _optional(whole["properties"])
        case "investigate":
            probes = [probe for probe in spec.shown_probes if _is_askable(probe.name, spec)]
            properties["probe"] = _choice([probe.name for probe in probes] or [""])
            names = dict.fromkeys(name for probe in probes for name in parameters(probe))
            properties["params"] = _optional(dict.fromkeys(names, properties["params"]["additionalProperties"]))
        case "stop":
            properties["left"] = _optional({family: {"type": "string"} for family in families(spec)})
    narrowed: Schema = _bounded(arguments)
    return narrowed


def _narrow_proposal(arguments: Schema, spec: TargetSpec, evidence: Sequence[str]) -> None:
    properties = arguments["properties"]
    properties["probe"] = _choice(["", *(probe.name for probe in spec.shown_probes)])
    properties["lever_family"] = _choice(list(families(spec) or LEVER_FAMILIES))
    properties["predicted"]["properties"]["metric"] = _choice(list(known_metrics(spec)))
    knobs = {knob.name: _domain(knob) for knob in spec.knobs}
    properties["knobs"] = _optional(knobs)
    launch = {spec.launch_file.path} if spec.launch_file else set()
    if knobs and not set(spec.editable) - launch:  # there is nothing to change but knobs: one at least
        del properties["edits"]
        properties["knobs"] = {"anyOf": _some(knobs)}
        properties["evidence"]["items"] = _choice(list(dict.fromkeys((*knobs, *evidence))))
        arguments["required"].append("knobs")


def _some(properties: Schema) -> list[Schema]:
    """Objects that together are all but the empty one: each has one property for sure, and may have those after it."""
    names = list(properties)
    return [
        {**_optional({later: properties[later] for later in names[i:]}), "required": [name]}
        for i, name in enumerate(names)
    ]


def _domain(knob: Knob) -> Schema:
    if knob.choices:
        return {"enum": [*knob.choices, None]}
    return {"anyOf": [{"type": "integer", "minimum": knob.minimum, "maximum": knob.maximum}, {"type": "null"}]}


def _choice(values: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(values)}


def _object(properties: Schema) -> Schema:
    return {**_optional(properties), "required": list(properties)}


def _optional(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _is_askable(name: str, spec: TargetSpec) -> bool:
    try:
        points(spec, name, {})
    except InvestigationRefused:
        return False
    return True


def _bounded(node: Any, name: str = "") -> Any:
    """A schema with an end to every text and list but code, and without words for people."""
    if isinstance(node, list):
        return [_bounded(item, name) for item in node]
    if not isinstance(node, dict):
        return node
    bounded: Schema = {
        key: _members(value) if key == "properties" else _bounded(value, name)
        for key, value in node.items()
        if key not in ("description", "default", "title")
    }
    if bounded.get("type") == "string" and "enum" not in bounded and name not in ("old", "new"):
        bounded["maxLength"] = min(MOST_CHARACTERS, bounded.get("maxLength", MOST_CHARACTERS))
    if bounded.get("type") == "array":
        bounded["maxItems"] = min(MOST_ITEMS, bounded.get("maxItems", MOST_ITEMS))
    return bounded


def _members(properties: Schema) -> Schema:
    return {name: _bounded(value, name) for name, value in properties.items()}


def _plain(node: Any) -> Any:
    """A schema for reading: without the bounds that only a grammar needs."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    noise = ("additionalProperties", "maxLength", "maxItems", "minLength", "minItems", "default", "title")
    return {
        key: {name: _plain(member) for name, member in value.items()} if key == "properties" else _plain(value)
        for key, value in node.items()
        if key not in noise
    }
