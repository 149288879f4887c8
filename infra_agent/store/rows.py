"""Records to rows and back. Rows are dicts keyed by column; rows read are validated like any other input."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from feedback.signals import Signal
from infra_agent.domain import Campaign, Experiment, Hypothesis
from infra_agent.lessons import Lesson

Row = dict[str, Any]

_CAMPAIGN_TIMES = {"created_at", "finished_at"}
_EXPERIMENT_TIMES = {"created_at", "started_at", "finished_at"}
_LESSON_COLUMNS = (
    "id", "campaign_id", "experiment_id", "target_name", "engine", "host_fingerprint", "verdict", "text", "edited_by",
)  # fmt: skip
_LESSON_TIMES = ("edited_at", "created_at")


def encode_json(value: object) -> str:
    """JSON text that PostgreSQL takes too: a number that is not finite becomes a string, which pydantic reads
    back as that number wherever a number is wanted."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def campaign_row(campaign: Campaign) -> Row:
    """The row of a campaign."""
    row: Row = campaign.model_dump(mode="json", exclude=_CAMPAIGN_TIMES)
    return row | {name: getattr(campaign, name) for name in _CAMPAIGN_TIMES}


def read_campaign(row: Row) -> Campaign:
    """The campaign of a row. One of the first revision has no script."""
    return Campaign.model_validate(row | {"script": row["script"] or ()})


def experiment_row(experiment: Experiment) -> Row:
    """The row of an experiment, without its hypothesis and signals, which have tables of their own."""
    row: Row = experiment.model_dump(mode="json", exclude={"proposal", "signals", "verdict"} | _EXPERIMENT_TIMES)
    proposal, verdict = experiment.proposal, experiment.verdict
    return row | {
        "probe": proposal.probe,
        "params": {name: list(values) for name, values in proposal.params.items()},
        "planner": proposal.planner,
        "change": proposal.change.model_dump(mode="json"),
        "change_fingerprint": proposal.change.fingerprint,
        "verdict_kind": verdict.kind.value if verdict else None,
        "verdict_reasons": list(verdict.reasons) if verdict else None,
        **{name: getattr(experiment, name) for name in _EXPERIMENT_TIMES},
    }


def hypothesis_row(experiment: Experiment) -> Row:
    """The row of an experiment's hypothesis."""
    hypothesis = experiment.proposal.hypothesis
    predicted = hypothesis.predicted
    return {
        "experiment_id": experiment.id,
        **hypothesis.model_dump(mode="json", exclude={"predicted"}),
        "predicted_metric": predicted.metric if predicted else None,
        "predicted_direction": predicted.direction if predicted else None,
        "predicted_low": predicted.low if predicted else None,
        "predicted_high": predicted.high if predicted else None,
    }


def signal_rows(experiment: Experiment) -> list[Row]:
    """The rows of an experiment's signals, in their order."""
    return [
        {
            "experiment_id": experiment.id,
            "position": position,
            "fingerprint": signal.fingerprint,
            **signal.model_dump(mode="json"),
        }
        for position, signal in enumerate(experiment.signals)
    ]


def read_experiment(row: Row, signals: Iterable[Signal]) -> Experiment:
    """The experiment of a row joined with its hypothesis."""
    fields = dict(row)
    predicted = {name: fields.pop(f"predicted_{name}") for name in ("metric", "direction", "low", "high")}
    hypothesis = {name: fields.pop(name) for name in Hypothesis.model_fields if name != "predicted"}
    hypothesis["evidence"] = hypothesis["evidence"] or ()
    kind, reasons = fields.pop("verdict_kind"), fields.pop("verdict_reasons")
    proposal = {
        "hypothesis": {**hypothesis, "predicted": predicted if predicted["metric"] is not None else None},
        "change": fields.pop("change"),
        "probe": fields.pop("probe"),
        "params": fields.pop("params") or {},
        "planner": fields.pop("planner") or "",
    }
    for derived in ("change_fingerprint", "experiment_id"):
        del fields[derived]
    return Experiment.model_validate(
        {
            **fields,
            "lost_s": fields["lost_s"] or 0.0,
            "proposal": proposal,
            "verdict": None if kind is None else {"kind": kind, "reasons": reasons, "commit": fields["commit"] or ""},
            "signals": tuple(signals),
        }
    )


def read_signal(row: Row) -> Signal:
    """The signal of a row. A column that came with a later version is null in the rows of before."""
    return Signal.model_validate({name: row[name] for name in Signal.model_fields if row[name] is not None})


def lesson_row(lesson: Lesson) -> Row:
    """The row of a lesson; what is not searched is JSON."""
    fields = lesson_text(lesson)
    row = {name: fields.pop(name) for name in _LESSON_COLUMNS}
    times = {name: getattr(lesson, name) for name in _LESSON_TIMES}
    return row | times | {"learned": {name: value for name, value in fields.items() if name not in times}}


def lesson_text(lesson: Lesson) -> Row:
    """A lesson as JSON that PostgreSQL takes: without NUL characters, which the words of a model may hold."""
    fields: Row = json.loads(json.dumps(lesson.model_dump(mode="json")).replace("\\u0000", "\\ufffd"))
    return fields


def read_lesson(row: Row) -> Lesson:
    """The lesson of a row."""
    return Lesson.model_validate({name: value for name, value in row.items() if name != "learned"} | row["learned"])
