"""Rules on how a load meets an engine: prefix cache hits and queues, and when it is the workload's doing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation, RuntimeEvent
from feedback.rules import rule
from feedback.rules.arms import Arm, Trouble, evidence, servers, signals
from feedback.rules.stability_engine import FULL
from feedback.signals import Cause, Location, ParamLocation, Quantity, Signal
from feedback.stats import trend

MIN_TOKENS = 1000
"""Fewer tokens looked up than this say nothing about hits in one arm."""
FEW_TOKENS = 200
"""Fewer say nothing about hits that were lost either; below `MIN_TOKENS` a loss is a note."""
FEWER_HITS = 0.10
"""How far the share of hits must fall, absolutely, to be a loss (and by a quarter of what it was)."""
MIN_SAMPLES = 8
SURE = 3.0
"""Mann-Kendall's z of a queue that grows."""


class Hits(NamedTuple):
    """How the prefix cache of an arm did."""

    rate: float
    tokens: float
    """Looked up; 0 where only the rate is known."""
    events: list[RuntimeEvent]


def _hits(arm: Arm) -> Hits | None:
    found, new = arm.of("cached_prompt_tokens"), arm.total("prompt_tokens")
    n = arm.total("cached_prompt_tokens")
    if found:
        # llama.cpp and SGLang's log count computed tokens apart from cached ones; the others say what was looked up.
        tokens = arm.total("looked_up_tokens") or n + new
        return Hits(n / tokens, tokens, [*found, *arm.of("looked_up_tokens")]) if tokens >= FEW_TOKENS else None
    if rates := [e for e in arm.of("prefix_cache_hit_rate") if 0 <= e.count <= 1]:
        return Hits(rates[-1].count, 0.0, rates[-1:])
    return None


@rule(
    "stability.cache_hits",
    says="the prefix cache is asked and never hits, hits less than in the baseline, or can't hit with this workload",
    needs="Prometheus scrapes or engine logs; `shared_prefix_tokens` among the events tells workload from defect",
)
def cache_hits(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Hits lost against the baseline; no hits at all; and whether the workload could have any."""
    of = servers(observations, criteria, "metrics", "engine_log", "events")
    return [signal for there in of for signal in _cache(there, criteria)]


def _cache(there: dict[str, Arm], criteria: Criteria) -> list[Signal]:
    found = {name: hits for name, arm in there.items() if (hits := _hits(arm)) is not None}
    if not found:
        return []
    before, after = found.get("baseline"), found.get("candidate")
    if before and after and before.rate - after.rate >= max(FEWER_HITS, before.rate / 4):
        return [_lost(before, after, there["candidate"], criteria)]
    if any(hits.rate > 0 or 0 < hits.tokens < MIN_TOKENS for hits in found.values()):
        return []
    name = "candidate" if "candidate" in found else "baseline"
    return [_never(there[name], found, tuple(there[each].place for each in sorted(found)))]


def _lost(before: Hits, after: Hits, arm: Arm, criteria: Criteria) -> Signal:
    tokens = [hits.tokens for hits in (before, after) if hits.tokens]
    few = min(tokens, default=MIN_TOKENS) < MIN_TOKENS
    return Signal(
        rule_id="stability.cache_hits", level="note" if few else "warning", finding="observed",
        message=f"prefix cache hits fell from {before.rate:.1%} to {after.rate:.1%} of the looked up tokens",
        locations=(*criteria.changed, arm.place),
        measured=(Quantity(name="hit_rate", value=after.rate),),
        expected=(Quantity(name="hit_rate", value=before.rate),),
        causes=(
            Cause(text="prefixes are evicted before they are asked for again: a smaller cache, or more of it in use",
                  refutable_by="no evictions, or the rate stays with twice the cache"),
            Cause(text="what is stored and what is looked up no longer match (block size, alignment, hash inputs)",
                  refutable_by="a request sent twice in a row hits"),
        ),
        caveats=("different prompts in the arms would look the same",
                 *((f"only {min(tokens):g} tokens were looked up: a few requests decide",) if few else ())),
        next=("send one long request twice in a row to each arm and compare its cached tokens",),
        evidence=evidence([*after.events, *before.events]),
    )  # fmt: skip


def _never(arm: Arm, found: dict[str, Hits], places: tuple[Location, ...]) -> Signal:
    """No hit anywhere: by the workload, by a defect, or not to be told apart without its shared prefix."""
    block, knob = arm.whole("block_size"), arm.setting("block_size")
    shared, caching = arm.of("shared_prefix_tokens"), arm.setting("prefix_caching")
    if knob:
        places = (ParamLocation(name=knob[0], value=knob[1]), *places)
    events = [*found[arm.name].events, *shared, *(e for e in arm.events if e.name == "setting_block_size")]
    tokens = found[arm.name].tokens
    looked_up = f" in {tokens:g} looked up tokens" if tokens else ""
    measured = (Quantity(name="hit_rate", value=0.0),)
    if shared and block and shared[0].count < block:
        return Signal(
            rule_id="stability.cache_hits", level="note", finding="holds", locations=places, measured=measured,
            message=f"the workload, not a bug: no prefix cache hits, because the shared prefix "
            f"({shared[0].count:g} tokens) is shorter than one block ({block})",
            next=(f"lower {knob[0] if knob else 'block_size'}, or share at least {block} tokens, if hits are wanted",),
            evidence=evidence(events),
        )  # fmt: skip
    if caching and caching[1] == "False":
        return Signal(
            rule_id="stability.cache_hits", level="note", finding="holds", locations=places, measured=measured,
            message=f"no prefix cache hits: {caching[0]} is False", evidence=evidence(events),
        )  # fmt: skip
    if shared and block:
        return Signal(
            rule_id="stability.cache_hits", level="warning", finding="observed", locations=places, measured=measured,
            message=f"prefix cache never hits{looked_up}, although {shared[0].count:g} tokens are shared "
            f"(a block is {block})",
            causes=(Cause(text="the blocks that are stored are not the ones that are looked up (alignment, masks, "
                               "hash inputs such as a salt or a LoRA)", support="strong",
                          refutable_by="stored and looked up block hashes have common members"),),
            next=("log the block hashes of one request at store and of its repetition at lookup: their common "
                  "members must not be empty",),
            evidence=evidence(events),
        )  # fmt: skip
    return Signal(
        rule_id="stability.cache_hits", level="note", finding="inconclusive", locations=places, measured=measured,
        message=f"no prefix cache hits{looked_up}" + (" in both arms" if len(found) > 1 else ""),
        reason="whether the requests share a prefix of at least one block is not known",
        causes=(Cause(text="the workload shares no prefix of a whole block", refutable_by="it shares one"),
                Cause(text="stored and looked up blocks never match", refutable_by="a request sent twice hits")),
        next=("send one request of several blocks twice in a row: its second run must hit",),
        evidence=evidence(events),
    )  # fmt: skip


@rule(
    "stability.queue_growth",
    says="the queue grows as long as the load lasts: more is offered than the engine serves",
    needs="engine logs with periodic lines",
)
def queue_growth(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """A queue that rises over the run. In both arms it is the offered rate, not the change."""
    return [signal for there in servers(observations, criteria, "engine_log") for signal in _queue(there, criteria)]


def _queue(there: dict[str, Arm], criteria: Criteria) -> list[Signal]:
    found = signals("stability.queue_growth", criteria, [there], _growing)
    both = len(there) == 2 and all(_growing(arm) for arm in there.values())
    if both and found[0].level == "note":
        said = f"the workload, not a bug: {found[0].message.partition(': ')[2]} in both arms, so more is offered "
        return [found[0].model_copy(update={"message": (said + "than either serves")[:400], "finding": "holds"})]
    return found


def _growing(arm: Arm) -> Trouble | None:
    series: dict[str, list[RuntimeEvent]] = {}
    for e in arm.of("waiting_requests"):
        if e.source == "engine_log" and e.place is not None:
            series.setdefault(e.place.file, []).append(e)
    for samples in series.values():
        values = [e.count for e in samples]
        third = len(values) // 3
        if len(values) < MIN_SAMPLES:
            continue
        first, last = median(values[:third]), median(values[-third:])
        if trend(values) < SURE or last < max(4.0, 2 * first + 2):
            continue
        begin, end = samples[0].at_s, samples[-1].at_s
        seconds = end - begin if begin is not None and end is not None else 0.0
        over = f" over {seconds:g} s" if seconds > 0 else ""
        return Trouble(
            said=f"the queue grew from {first:g} to {last:g} waiting requests{over}", amount=last, level="warning",
            events=[samples[0], samples[-1]],
            measured=(Quantity(name="waiting_requests", value=last),),
            expected=(Quantity(name="waiting_requests", value=first),),
            causes=_why_growing(arm),
            next=("offer the load at two thirds of the rate: if the queue stays short, latencies of this run tell "
                  "of the queue and not of the engine",),
            caveats=("latencies measured on a growing queue depend on how long the run lasts",),
        )  # fmt: skip
    return None


def _why_growing(arm: Arm) -> tuple[Cause, ...]:
    limit, peak, usage = arm.whole("max_running"), arm.peak("running_requests"), arm.peak("kv_cache_usage")
    causes = []
    if usage is not None and usage >= FULL:
        causes.append(Cause(text="the KV cache is full, so no more requests are admitted", support="strong",
                            refutable_by="a larger cache admits no more"))  # fmt: skip
    if limit is not None and peak is not None and peak >= limit:
        causes.append(Cause(text=f"as many requests run as may ({limit})", support="strong",
                            refutable_by="a higher limit doesn't raise the throughput"))  # fmt: skip
    return (*causes, Cause(text="the offered rate exceeds the engine's capacity",
                           refutable_by="the queue grows at half the rate too"))  # fmt: skip
