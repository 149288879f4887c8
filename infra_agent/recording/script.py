"""A session as a script: what its planner asked for, in order, as `planner.scripted` reads it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import tomlkit

from infra_agent.domain import Experiment
from infra_agent.errors import WrongUse
from infra_agent.recording.redaction import Redaction
from infra_agent.recording.session import Session, patch_name

_BREAKS = re.compile("[\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
"""Valid in TOML, but other line ends to some readers, or unseen by people."""


class Script(NamedTuple):
    """A script with its patches by file name."""

    text: str
    patches: dict[str, str]


def as_script(session: Session, redaction: Redaction) -> Script:
    """The script that proposes what this session proposed. Raises WrongUse if that was nothing."""
    if not session.proposed:
        raise WrongUse(
            f"campaign {session.campaign.id} has proposed and investigated nothing yet, so there is nothing to replay"
        )
    planner = session.campaign.spec.planner.partition(":")[0]
    tables = [
        f"# A session of planner {planner} on {redaction.text(session.campaign.target_name)}, as it was recorded.\n"
        "# infra-agent run TARGET --planner script:script.toml proposes the same again; what it measures is live.\n"
    ]
    patches: dict[str, str] = {}
    for experiment in session.proposed:
        if patch := experiment.proposal.change.patch:
            patches[patch_name(experiment)] = redaction.patch(patch)
        tables.append(_comment(experiment, patches, patch) + _table(experiment, redaction))
    return Script("\n".join(tables), patches)


def _comment(experiment: Experiment, patches: dict[str, str], patch: str) -> str:
    who = " ".join(experiment.proposal.planner.split())
    by = f", proposed by {who}" if who else ""
    verdict = experiment.verdict if experiment.role == "change" else None
    came = f": {verdict.kind.value}{', confirmed' if experiment.confirmed else ''}" if verdict else ""
    lines = [f"# experiment {experiment.number}{by}{came}"]
    if patch and patches[patch_name(experiment)] != patch:
        lines.append("# In its patch, words that only this machine knows were replaced.")
    return "".join(f"{line}\n" for line in lines)


def _table(experiment: Experiment, redaction: Redaction) -> str:
    proposal, hypothesis = experiment.proposal, experiment.proposal.hypothesis
    if experiment.role == "investigation":
        asked: dict[str, Any] = {"question": redaction.text(hypothesis.question), "probe": proposal.probe}
        if proposal.params:
            asked["params"] = {name: [redaction.value(v) for v in values] for name, values in proposal.params.items()}
        return _dump("investigate", asked)
    change = proposal.change
    texts = ("claim", "mechanism", "location", "question", "lever_family", "falsifier")
    entry: dict[str, Any] = {name: redaction.text(given) for name in texts if (given := getattr(hypothesis, name))}
    if hypothesis.evidence:
        entry["evidence"] = [redaction.text(given) for given in hypothesis.evidence]
    if proposal.probe:
        entry["probe"] = proposal.probe
    if hypothesis.predicted is not None:
        entry["predicted"] = hypothesis.predicted.model_dump(exclude_none=True)
    if change.patch:
        entry["patch"] = patch_name(experiment)
    if set_ := {name: redaction.value(value) for name, value in change.knobs.items() if value is not None}:
        entry["knobs"] = set_
    if unset := [name for name, value in change.knobs.items() if value is None]:
        entry["unset"] = unset
    return _dump("propose", entry)


def _dump(name: str, entry: dict[str, Any]) -> str:
    """One table, with small ones inside it on a line of their own."""
    table = tomlkit.table()
    for key, value in entry.items():
        if isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            table[key] = inline
        else:
            table[key] = value
    array = tomlkit.aot()
    array.append(table)
    text = tomlkit.dumps({name: array})
    return _BREAKS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
