"""A comparison as SARIF 2.1.0 (OASIS standard), which code hosts and editors show beside the code.

A signal is a result. `kind` says what the finding means (only `fail` has a level), its places are physical locations
where they are files and logical ones where they are functions, parameters or threads, and its evidence stands in
`relatedLocations`. What SARIF has no field for stands in `properties`: effect, interval, causes, next experiments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from feedback.comparison import Comparison
from feedback.digest import place
from feedback.rules.derive import RULES
from feedback.signals import Evidence, Location, Signal
from feedback.wording import plain

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MAX_RESULTS = 5000
"""What GitHub takes of one run."""

_KINDS = {
    "better": "informational", "worse": "fail", "same": "pass", "inconclusive": "open", "violates": "fail",
    "holds": "pass", "observed": "fail", "abstained": "notApplicable",
}  # fmt: skip
_LOGICAL = {"kernel": "function", "param": "parameter", "thread": "thread", "process": "process", "host": "host",
            "input": "input", "region": "variable", "interval": "interval", "code": "function"}  # fmt: skip


def sarif(comparison: Comparison, version: str = "") -> dict[str, Any]:
    """The comparison as a SARIF log, ready for `json.dumps`. `version` is that of the tool."""
    rules = _rules(comparison.signals)
    index = {rule["id"]: n for n, rule in enumerate(rules)}
    driver: dict[str, Any] = {"name": "infra-agent feedback", "rules": rules}
    if version:
        driver["version"] = version
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _notifications(comparison)}],
        "results": [_result(signal, index) for signal in comparison.signals[:MAX_RESULTS]],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [_finite(run)]}


def _rules(signals: Sequence[Signal]) -> list[dict[str, Any]]:
    known = {rule_id: rule for rule in RULES for rule_id in rule.ids}
    found = []
    for rule_id in [*known, *dict.fromkeys(s.rule_id for s in signals if s.rule_id not in known)]:
        entry: dict[str, Any] = {"id": rule_id, "name": "".join(w.title() for w in re.split(r"[._]", rule_id))}
        if rule := known.get(rule_id):
            entry["shortDescription"] = {"text": _text(rule.says)}
            entry["help"] = {"text": _text(f"Derived from: {rule.needs}.")}
            entry["properties"] = {"tags": [rule.family]}
        found.append(entry)
    return found


def _result(signal: Signal, index: dict[str, int]) -> dict[str, Any]:
    kind = _KINDS[signal.finding]
    if signal.finding == "observed" and signal.level == "note":
        kind = "informational"
    said = signal.message if signal.reason in signal.message else f"{signal.message} ({signal.reason})"
    result: dict[str, Any] = {
        "ruleId": signal.rule_id,
        "ruleIndex": index[signal.rule_id],
        "kind": kind,
        "level": signal.level if kind == "fail" else "none",
        "message": {"text": _text(said)},
        "locations": _locations(signal.locations),
        "partialFingerprints": {"signal/v1": signal.fingerprint},
        "properties": _properties(signal),
    }
    if signal.evidence:
        result["relatedLocations"] = [{"id": n, **_evidence(e)} for n, e in enumerate(signal.evidence)]
    return result


def _locations(locations: Sequence[Location]) -> list[dict[str, Any]]:
    """Places in files one by one, each with what it is called there; all others together on the first of them."""
    files = [p for p in locations if p.kind == "code" and p.file]
    others = [_logical(p) for p in locations if p.kind != "code" or not p.file]
    found: list[dict[str, Any]] = []
    for location in files:
        if location.kind != "code":
            continue
        entry: dict[str, Any] = {"physicalLocation": {"artifactLocation": _artifact(location.file)}}
        if location.line and location.line > 0:
            entry["physicalLocation"]["region"] = {"startLine": location.line}
        if location.symbol:
            entry["logicalLocations"] = [{"name": plain(location.symbol), "kind": "function"}]
        found.append(entry)
    if others and not found:
        found.append({})
    if others:
        named = [*found[0].get("logicalLocations", ()), *others]
        found[0]["logicalLocations"] = [p for n, p in enumerate(named) if p not in named[:n]]  # the schema wants a set
    return found


def _logical(location: Location) -> dict[str, Any]:
    name = getattr(location, "name", None) or place(location)
    return {"name": plain(name), "fullyQualifiedName": place(location), "kind": _LOGICAL[location.kind]}


def _evidence(e: Evidence) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _artifact(e.artefact)}
    if e.line is not None and e.line > 0:
        physical["region"] = {"startLine": e.line}
    elif e.byte_start is not None and e.byte_start >= 0:
        physical["region"] = {"byteOffset": e.byte_start}
        if e.byte_end is not None and e.byte_end >= e.byte_start:
            physical["region"]["byteLength"] = e.byte_end - e.byte_start
    entry: dict[str, Any] = {"physicalLocation": physical}
    details = {"query": e.query, "startNs": e.start_ns, "endNs": e.end_ns}
    if said := {name: value for name, value in details.items() if value not in (None, "")}:
        entry["properties"] = said
    if e.detail:
        entry["message"] = {"text": _text(e.detail)}
    return entry


def _artifact(file: str) -> dict[str, Any]:
    """A file's name as a URI: relative ones to the root of the sources."""
    name = plain(file).replace("\\", "/")
    if name.startswith("/"):
        return {"uri": "file://" + quote(name)}
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return {"uri": quote("/".join(parts) or "unknown"), "uriBaseId": "%SRCROOT%"}


def _properties(signal: Signal) -> dict[str, Any]:
    found: dict[str, Any] = {"finding": signal.finding, "level": signal.level, "role": signal.role}
    if signal.effect is not None:
        lo, hi = signal.effect.improvement_interval
        found["effect"] = signal.effect.model_dump(mode="json")
        found["effect"] |= {"improvement": signal.effect.improvement, "improvement_lo": lo, "improvement_hi": hi}
    for name in ("measured", "expected", "causes"):
        if values := getattr(signal, name):
            found[name] = [value.model_dump(mode="json", exclude_defaults=True) for value in values]
    for name in ("caveats", "next"):
        if values := getattr(signal, name):
            found[name] = list(values)
    return found


def _notifications(comparison: Comparison) -> list[dict[str, Any]]:
    """Files that were not read: who sees no result must see that."""
    found = []
    for f in comparison.unread[:MAX_RESULTS]:
        physical: dict[str, Any] = {"artifactLocation": _artifact(f.name)}
        if f.line > 0:
            physical["region"] = {"startLine": f.line}
        found.append(
            {"level": "warning", "message": {"text": _text(f"not read: {f.name}: {f.reason}")},
             "locations": [{"physicalLocation": physical}]}
        )  # fmt: skip
    return found


def _text(text: str) -> str:
    """A plain-text message: in SARIF `[a](1)` would be a link and `{0}` a placeholder."""
    return re.sub(r"\{(\d+)\}", r"{{\1}}", plain(text).replace("](", "] ("))


def _finite(value: Any) -> Any:
    """JSON knows no infinity and no NaN: they become text."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
