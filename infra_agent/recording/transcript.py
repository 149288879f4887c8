"""A session for people: what was asked and answered, what a model said, what each change was to do and did.

What was wrong stays in. Everything that the target or a planner wrote stands in fenced blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from feedback.digest import digest
from feedback.ranking import rank
from feedback.wording import count
from infra_agent import forecast
from infra_agent.citation import prefix
from infra_agent.dialogue import Exchange, exchanges
from infra_agent.domain import Experiment, ModelCall
from infra_agent.forecast import standing
from infra_agent.planner.fence import cut, neutral
from infra_agent.recording.redaction import Redaction
from infra_agent.recording.session import Session, patch_name
from infra_agent.report import render_text

ANSWER_CHARACTERS = 3_000
"""Of one answer of a tool; a script replays without any."""
WORDS_CHARACTERS = 8_000
OPENING_CHARACTERS = 6_000
BLOCK_CHARACTERS = 20_000
SIGNAL_TOKENS = 1_200
WIDTH = 100


def as_transcript(session: Session, redaction: Redaction) -> str:
    """The transcript as Markdown."""
    return _Page(redaction).whole(session)


class _Page:
    """Writes it. What is private goes before anything is cut or escaped, which could hide it."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction

    def whole(self, session: Session) -> str:
        told = sorted(self._told(session), key=lambda part: part[:2])
        report = session.report.model_copy(update={"next": (), "patch": ""})
        end = f"## What it measured then\n\n{self._block(render_text(report, WIDTH))}"
        return "\n\n".join([self._head(session), *(text for _, _, text in told), end]) + "\n"

    def _head(self, session: Session) -> str:
        campaign = session.campaign
        budget = f"{campaign.spec.budget.experiments} experiments"
        if campaign.spec.budget.minutes is not None:
            budget += f", {campaign.spec.budget.minutes:g} minutes"
        models = sorted({call.model for call in session.calls})
        by = f" ({', '.join(self._line(m) for m in models)})" if models else ""
        planner = self._line(campaign.spec.planner.partition(":")[0])
        n_changes = sum(e.role == "change" for e in session.proposed)
        n_asked = len(session.proposed) - n_changes
        return (
            f"# A session on {self._line(campaign.target_name)}\n\n"
            f"Planner {planner}{by}, {campaign.created_at:%Y-%m-%d %H:%M} UTC, budget {budget}. "
            f"{count(n_changes, 'change')} and {count(n_asked, 'investigation')} of the parent; "
            f"{len(session.journal.accepted)} accepted.\n\n"
            "`script.toml` beside this page proposes the same again: "
            "`infra-agent run TARGET --planner script:script.toml`. What it measures is live and may differ."
        )

    def _told(self, session: Session) -> Iterator[tuple[datetime, int, str]]:
        """What happened, each with its time and, for what happened at once, its place."""
        for experiment in session.journal.experiments:
            yield experiment.created_at, 1, self._experiment(experiment)
        for exchange in exchanges(session.events):
            if exchange.answer.experiment is None:  # else its experiment tells all of it
                yield exchange.at.created_at, 2, self._exchange(exchange)
        seen: list[Any] = []
        for call in session.calls:
            text, seen = self._call(call, seen)
            yield call.created_at, 0, text

    def _experiment(self, experiment: Experiment) -> str:
        role, number = experiment.role, experiment.number
        if role == "investigation":
            return f"## {number}. Investigation: {self._investigated(experiment)}"
        if role != "change":
            reasons = experiment.verdict.reasons if experiment.verdict else (experiment.state.value,)
            claim = self._line(experiment.proposal.hypothesis.claim)
            return (
                f"## {number}. The campaign's own measurement ({role}): {claim}\n\n{self._block(chr(10).join(reasons))}"
            )
        parts = [
            f"## {number}. Change: {self._line(experiment.proposal.hypothesis.claim)}",
            self._hypothesis(experiment),
        ]
        verdict = experiment.verdict
        said = verdict.kind.value if verdict else experiment.state.value
        parts.append(f"**{said}{', confirmed' if experiment.confirmed else ''}**")
        lines = [*(verdict.reasons if verdict else ())]
        if found := standing(experiment):
            lines.append(f"prediction: {forecast.said(found)}")
        parts.append(self._block("\n".join([*lines, _signals(experiment)])))
        return "\n\n".join(parts)

    def _investigated(self, experiment: Experiment) -> str:
        proposal = experiment.proposal
        question = proposal.hypothesis.question or proposal.hypothesis.claim
        asked = f"{self._line(question)}\n\nprobe {self._code(proposal.probe)}"
        if proposal.params:
            params = {name: list(values) for name, values in proposal.params.items()}
            asked += f" with {self._code(json.dumps(params, ensure_ascii=False))}"
        return f"{asked}\n\n{self._block(_signals(experiment) or experiment.state.value)}"

    def _hypothesis(self, experiment: Experiment) -> str:
        hypothesis, change = experiment.proposal.hypothesis, experiment.proposal.change
        predicted = hypothesis.predicted
        range_ = ""
        if predicted is not None:
            high = "" if predicted.high is None else f" to {100 * predicted.high:g} %"
            range_ = f"{predicted.metric} {predicted.direction} {100 * predicted.low:g} %{high or ' or more'}"
        knobs = [f"{n} unset" if v is None else f"{n} = {v}" for n, v in change.knobs.items()]
        told = {
            "mechanism": hypothesis.mechanism, "location": hypothesis.location, "question": hypothesis.question,
            "lever family": hypothesis.lever_family, "evidence": ", ".join(hypothesis.evidence),
            "predicted": range_, "falsifier": hypothesis.falsifier, "probe": experiment.proposal.probe,
            "knobs": ", ".join(knobs), "patch": patch_name(experiment) if change.patch else "",
            "proposed by": experiment.proposal.planner,
        }  # fmt: skip
        return "\n".join(f"- {name}: {self._line(text)}" for name, text in told.items() if text)

    def _exchange(self, exchange: Exchange) -> str:
        answer = exchange.answer
        arguments = json.dumps(answer.call.arguments, ensure_ascii=False, indent=1)
        head = f"### {self._line(answer.call.tool)}{' (refused)' if answer.refused else ''}"
        return f"{head}\n\n{self._block(arguments, WORDS_CHARACTERS, language='json')}\n\n{self._answer(answer.text)}"

    def _call(self, call: ModelCall, seen: list[Any]) -> tuple[str, list[Any]]:
        """What a model was told since its last call, and what it said; and all that it has been told by now."""
        messages = _at(_read(call.request), "messages")
        messages = messages if isinstance(messages, list) else []
        is_next = bool(seen) and messages[: len(seen)] == seen
        parts: list[str] = []
        for message in messages[len(seen) if is_next else 0 :]:
            role, content = _at(message, "role"), str(_at(message, "content") or "")
            if role == "tool":
                parts.append(f"### Answer\n\n{self._answer(content)}")
            elif role == "user" and content:
                parts.append(f"### Asked\n\n{self._block(content, OPENING_CHARACTERS)}")
        message = _at(_read(call.response), "choices", 0, "message")
        parts.append(f"### {self._line(call.model)} says")
        for name in ("reasoning_content", "reasoning", "content", "refusal"):
            if words := str(_at(message, name) or "").strip():
                head = "Reasoning:\n\n" if name.startswith("reason") else ""
                parts.append(head + self._block(words, WORDS_CHARACTERS))
        calls = _at(message, "tool_calls")
        for asked in calls if isinstance(calls, list) else ():
            name, arguments = _at(asked, "function", "name"), _at(asked, "function", "arguments")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            parts.append(f"calls {self._code(str(name))}\n\n{self._block(text, WORDS_CHARACTERS, language='json')}")
        return "\n\n".join(part.strip() for part in parts), messages

    def _answer(self, text: str) -> str:
        return self._block(text, ANSWER_CHARACTERS)

    def _block(self, text: str, limit: int = BLOCK_CHARACTERS, language: str = "text") -> str:
        """A fenced block that its text can't close."""
        clean = neutral(cut(self._redaction.text(text), limit)).strip("\n")
        longest = max((len(run) for run in re.findall(r"`{3,}", clean)), default=2)
        mark = "`" * (longest + 1)
        return f"{mark}{language}\n{clean}\n{mark}"

    def _code(self, text: str) -> str:
        """Text on one line as code."""
        return "`" + neutral(" ".join(self._redaction.text(text).split())).replace("`", "'") + "`"

    def _line(self, text: str) -> str:
        """Text on one line that makes no Markdown."""
        line = neutral(" ".join(self._redaction.text(text).split()))
        return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", line)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _signals(experiment: Experiment) -> str:
    return digest(rank(experiment.signals), SIGNAL_TOKENS, prefix(experiment))


def _at(value: Any, *path: str | int) -> Any:
    """The value at a path in JSON that someone else wrote; None where there is none."""
    for part in path:
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and len(value) > part else None
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value
