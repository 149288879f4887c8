"""Scrapes of /metrics: differences of counters under one name for every engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feedback.observations import RuntimeEvent
from feedback.readers import Unreadable
from feedback.readers.prometheus import Scrape, events, read, scrape

DATA = Path(__file__).resolve().parents[1] / "data" / "llamacpp"


def by_name(found: list[RuntimeEvent]) -> dict[str, RuntimeEvent]:
    return {event.name: event for event in found}


def scrapes(tmp_path: Path, before: str, after: str) -> Path:
    path = tmp_path / "scrapes.json"
    path.write_text(json.dumps({"before": before, "after": after}), encoding="utf-8")
    return path


def test_recorded_scrapes_of_a_real_server_are_differenced() -> None:
    found = by_name(read(DATA / "scrapes.json", "events", "screen", "baseline"))
    # Two bursts of four requests of six tokens.
    assert found["output_tokens"].count == 48
    assert found["output_tokens"].message == "tokens generated (llamacpp:tokens_predicted_total)"
    assert found["prompt_tokens"].count > 0
    assert found["cached_prompt_tokens"].count > 0
    assert 1 < found["busy_slots_per_pass"].count <= 2
    assert {e.source for e in found.values()} == {"metrics"}
    assert {e.arm for e in found.values()} == {"baseline"}
    assert {e.level for e in found.values()} == {"note"}


def test_counters_are_summed_over_their_labels() -> None:
    text = (
        "# TYPE vllm:generation_tokens_total counter\n"
        'vllm:generation_tokens_total{engine="0"} 10\n'
        'vllm:generation_tokens_total{engine="1"} 5\n'
    )
    found = by_name(events(Scrape({}), scrape(text), "events", "screen", "candidate"))
    assert found["output_tokens"].count == 15


def test_preemptions_warn_only_when_there_were_some() -> None:
    quiet = {"vllm:num_preemptions_total": 3.0}
    busy = {"vllm:num_preemptions_total": 5.0}
    assert "preemptions" not in by_name(events(Scrape(quiet), Scrape(quiet), "events", "screen", "candidate"))
    event = by_name(events(Scrape(quiet), Scrape(busy), "events", "screen", "candidate"))["preemptions"]
    assert (event.count, event.level) == (2, "warning")


def test_old_and_new_names_of_one_counter_are_not_added() -> None:
    both = {"vllm:kv_cache_usage_perc": 0.5, "vllm:gpu_cache_usage_perc": 0.5}
    assert by_name(events(Scrape({}), Scrape(both), "events", "screen", "candidate"))["kv_cache_usage"].count == 0.5


def test_counter_that_went_back_tells_of_a_restart() -> None:
    before, after = {"llamacpp:n_decode_total": 90.0}, {"llamacpp:n_decode_total": 4.0}
    found = by_name(events(Scrape(before), Scrape(after), "events", "screen", "candidate"))
    assert found["decode_calls"].count == 4
    assert found["server_restarted"].level == "warning"


def test_values_that_are_not_finite_are_left_out() -> None:
    assert scrape("# TYPE a gauge\na NaN\n# TYPE b gauge\nb +Inf\n# TYPE c gauge\nc 2\n").values == {"c": 2.0}


def test_server_that_died_leaves_no_file_and_no_events(tmp_path: Path) -> None:
    assert read(tmp_path / "missing.json", "events", "screen", "candidate") == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"before": ""}', '{"before": 1, "after": ""}'])
def test_malformed_file_is_located(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scrapes.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Unreadable, match=r"scrapes\.json, line 1"):
        read(path, "events", "screen", "candidate")


@pytest.mark.parametrize("text", ["one two three four {", "a b c\n", "<html>not found</html>\n"])
def test_scrape_in_another_format_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Unreadable, match="after is not in the Prometheus text format"):
        read(scrapes(tmp_path, "", text), "events", "screen", "candidate")


# Plain text, vLLM, SGLang.

METRICS = DATA.parent / "metrics"


def test_plain_scrape_of_vllm_gives_totals_histograms_and_places() -> None:
    path = METRICS / "vllm_starved.prom"
    found = by_name(read(path, "events", "screen", "candidate"))
    assert (found["preemptions"].count, found["preemptions"].level) == (17, "warning")
    assert found["finished_requests"].count == 16
    assert found["looked_up_tokens"].count == 1792
    assert found["cached_prompt_tokens"].count == 1440
    assert found["ttft_s_mean"].count == pytest.approx(0.192, abs=0.001)
    assert found["ttft_s_p99"].count == 0.75
    assert found["setting_block_size"].message == "block_size = 32"
    place = found["preemptions"].place
    assert place is not None
    assert place.query == "vllm:num_preemptions_total"
    text = path.read_text(encoding="utf-8").splitlines()[(place.line or 0) - 1]
    assert text.startswith("vllm:num_preemptions_total{")


def test_histogram_between_two_scrapes_leaves_out_what_was_before() -> None:
    def text(n: int, late: int, total: float) -> str:
        name = "vllm:request_queue_time_seconds"
        return (
            f"# TYPE {name} histogram\n"
            f'{name}_bucket{{le="0.1"}} {n}\n{name}_bucket{{le="1.0"}} {n + late}\n'
            f'{name}_bucket{{le="+Inf"}} {n + late}\n'
            f"{name}_count {n + late}\n{name}_sum {total}\n"
        )

    found = by_name(events(scrape(text(100, 0, 1.0)), scrape(text(100, 10, 6.0)), "p", "screen", "candidate"))
    assert found["queue_time_s_mean"].count == pytest.approx(0.5)
    assert found["queue_time_s_p99"].count == 1.0


def test_sglang_and_old_names_have_the_same_meaning() -> None:
    text = (
        "# TYPE sglang:num_retracted_requests_total counter\nsglang:num_retracted_requests_total 4\n"
        "# TYPE sglang:num_retracted_input_tokens_total counter\nsglang:num_retracted_input_tokens_total 900\n"
        "# TYPE sglang:token_usage gauge\nsglang:token_usage 0.97\n"
    )
    found = by_name(events(Scrape({}), scrape(text), "p", "screen", "candidate"))
    assert found["preemptions"].count == 4
    assert found["retracted_input_tokens"].count == 900
    assert found["kv_cache_usage"].count == 0.97
    old = scrape("# TYPE vllm:gpu_prefix_cache_queries_total counter\nvllm:gpu_prefix_cache_queries_total 7\n")
    assert by_name(events(Scrape({}), old, "p", "screen", "candidate"))["looked_up_tokens"].count == 7
