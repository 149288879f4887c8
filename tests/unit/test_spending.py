"""What models may cost is reserved before each request and settled after it: over real HTTP with the real client, and
as a property over whatever an endpoint may count."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from planning import FAST, QUICK, context, proposal, stopped

from infra_agent.domain import NANODOLLARS, Budget, CampaignSpec, ModelUse, Reservation
from infra_agent.errors import ModelUnavailable, WrongUse
from infra_agent.planner import BudgetSpent, Propose, Stop, TimeUp
from infra_agent.planner.build import build_planner
from infra_agent.planner.calls import CallsInMemory
from infra_agent.planner.llm import LlmPlanner
from infra_agent.planner.prices import Price
from infra_agent.planner.spending import (
    ANSWER_TOKENS,
    LEAST_ANSWER_TOKENS,
    MOST_TOKENS,
    PROMPT_MARGIN,
    BookInMemory,
    Purse,
)
from infra_agent.planner.testing import Raw, ScriptedEndpoint, called, failed
from infra_agent.settings import Settings, load_settings

REQUEST: dict[str, Any] = {
    "model": "m", "messages": [{"role": "user", "content": "make it faster " * 100}], "max_tokens": 8192,
}  # fmt: skip
DONE = called(stopped("done"))


def prices(directory: Path, **more: object) -> Path:
    """A price table for the model m at any endpoint: 2, 0.5 and 8 dollars."""
    path = directory / "my prices.toml"
    keys = {"input": 2, "cached_input": 0.5, "output": 8.0} | more
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
    path.write_text("\n".join(["[[models]]", 'match = ["m"]', *lines]))
    return path


def settings(url: str = "http://127.0.0.1:9/v1", table: Path | None = None, model: str = "m") -> Settings:
    variables = {"INFRA_AGENT_HOME": "/nowhere", "INFRA_AGENT_MODEL": model, "OPENAI_BASE_URL": url}
    return load_settings(variables | ({"INFRA_AGENT_PRICES": str(table)} if table else {}))


def make_planner(use: Settings, book: BookInMemory, calls: CallsInMemory | None = None, **budget: Any) -> LlmPlanner:
    return LlmPlanner(use, calls or CallsInMemory("c1"), QUICK, purse=Purse(use, Budget(**budget), book, "c1"))


def answer(*calls: tuple[str, object], **usage: object) -> dict[str, Any]:
    """A chat completion whose endpoint counted so."""
    return {**called(*calls), "usage": usage}


def reading(n: int) -> tuple[str, object]:
    return "list_files", {"glob": f"{n}*"}


# Whatever is counted.


def outcome(rng: random.Random, purse: Purse, reserved: Reservation) -> None:
    """Something that may happen to a request which was sent: an answer, one without usage, a refusal, a loss."""
    happens = rng.choice(["counted", "counted", "counted", "uncounted", "refused", "lost"])
    if happens == "refused":
        purse.release(reserved)
    elif happens == "uncounted":
        purse.settle(reserved, rng.choice(["{}", "no json", '{"usage": null}', '{"usage": {"prompt_tokens": -5}}']))
    elif happens == "counted":
        prompt = rng.randint(1, reserved.reserved_prompt_tokens)
        usage = {
            "prompt_tokens": prompt, "completion_tokens": rng.randint(0, reserved.reserved_completion_tokens),
            "prompt_tokens_details": {"cached_tokens": rng.randint(0, prompt)},
        }  # fmt: skip
        purse.settle(reserved, json.dumps({"usage": usage}))


@pytest.mark.parametrize("seed", range(40))
def test_no_budget_is_ever_exceeded_and_little_of_it_is_left(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    cost = {"input": rng.choice([0, 0.07, 1.25, 15]), "output": rng.choice([0, 0.4, 3.33, 75])}
    table = prices(tmp_path, cached_input=cost["input"] / 10, **cost)
    tokens = rng.choice([None, rng.randint(1, 400_000)])
    dollars = rng.choice([None, 10 ** rng.uniform(-6, 1)]) if tokens else 10 ** rng.uniform(-6, 1)
    book, budget = BookInMemory(), Budget(tokens=tokens, dollars=dollars)
    purse = Purse(settings(table=table), budget, book, "c1")
    for _ in range(200):
        text = "".join(rng.choices("abc 019_{}\n,ü", k=rng.randint(1, 5_000)))
        request = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": rng.randint(1, 9000)}
        try:
            reserved, sent = purse.reserve(request)
        except BudgetSpent:
            break
        assert sent["max_tokens"] == reserved.reserved_completion_tokens
        assert sent["max_tokens"] >= min(LEAST_ANSWER_TOKENS, request["max_tokens"])
        assert_kept(book, budget)
        outcome(rng, purse, reserved)
        assert_kept(book, budget)
    else:
        assert tokens is None
        return
    if tokens is not None and dollars is None:
        assert tokens - book.use().tokens < 15_000  # what the largest of these prompts may take


def assert_kept(book: BookInMemory, budget: Budget) -> None:
    use = book.use()
    assert budget.tokens is None or use.tokens <= budget.tokens
    assert budget.dollars is None or use.nanodollars <= budget.dollars * NANODOLLARS


def test_a_request_that_just_fits_is_sent_and_one_token_less_is_not() -> None:
    book = BookInMemory()
    needed = Purse(settings(), Budget(), book, "c").reserve(REQUEST).reservation.reserved_prompt_tokens
    just = needed + LEAST_ANSWER_TOKENS
    assert Purse(settings(), Budget(tokens=just), BookInMemory(), "c").reserve(REQUEST).request["max_tokens"] == 1024
    with pytest.raises(BudgetSpent) as spent:
        Purse(settings(), Budget(tokens=just - 1), BookInMemory(), "c").reserve(REQUEST)
    assert str(spent.value) == (
        f"the budget of {just - 1} tokens is used up (0 used, the next call may take {needed + 1024})"
    )


def test_dollars_pay_for_as_long_an_answer_as_they_can(tmp_path: Path) -> None:
    use = settings(table=prices(tmp_path))
    prompt = Purse(use, Budget(), BookInMemory(), "c").reserve(REQUEST).reservation.reserved_prompt_tokens
    dollars = (2 * prompt + 8 * 2000) / 1e6
    _, sent = Purse(use, Budget(dollars=dollars), BookInMemory(), "c").reserve(REQUEST)
    assert sent["max_tokens"] == 2000
    with pytest.raises(
        BudgetSpent, match=r"the budget of 0\.00\d+ dollars is used up \(0 used, the next call may take 0"
    ):
        Purse(use, Budget(dollars=(2 * prompt + 8 * 1023) / 1e6), BookInMemory(), "c").reserve(REQUEST)


def test_calls_of_unknown_price_count_against_dollars_at_the_price_that_is_known_now(tmp_path: Path) -> None:
    book = BookInMemory()
    elsewhere = settings("http://models.example/v1")
    Purse(elsewhere, Budget(), book, "c").reserve(REQUEST)
    assert book.use().n_unpriced == 1
    (before,) = book.reservations
    known = settings("http://models.example/v1", prices(tmp_path))
    spent = (2 * before.prompt_tokens + 8 * 8192) / 1e6
    with pytest.raises(BudgetSpent, match="dollars is used up"):
        Purse(known, Budget(dollars=spent + 1e-6), book, "c").reserve(REQUEST)


def test_the_margin_grows_with_an_endpoint_that_counts_more() -> None:
    book = BookInMemory()
    purse = Purse(settings(), Budget(tokens=10**6), book, "c")
    first = purse.reserve(REQUEST).reservation
    counted = 3 * first.reserved_prompt_tokens
    purse.settle(first, json.dumps({"usage": {"prompt_tokens": counted, "completion_tokens": 1}}))
    assert purse.reserve(REQUEST).reservation.reserved_prompt_tokens >= counted


USAGES: list[tuple[str, tuple[int | None, int | None, int], bool]] = [
    ('{"usage": {"prompt_tokens": 50, "completion_tokens": 7}}', (50, 7, 0), False),
    ('{"usage": {"prompt_tokens": 50, "completion_tokens": 0}}', (50, 0, 0), False),
    ('{"usage": {"prompt_tokens": 50, "completion_tokens": 7, "total_tokens": 90}}', (50, 40, 0), False),  # reasoning
    ('{"usage": {"prompt_tokens": 50, "total_tokens": 90}}', (50, 40, 0), False),
    ('{"usage": {"prompt_tokens": 50, "completion_tokens": 7, "prompt_cache_hit_tokens": 30}}', (50, 7, 30), False),
    (
        '{"usage": {"prompt_tokens": 50, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}}',
        (50, 7, 40), False,
    ),
    (
        '{"usage": {"prompt_tokens": 50, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 99}}}',
        (50, 7, 50), False,
    ),
    ('{"usage": {"prompt_tokens": 50, "completion_tokens": 7, "prompt_tokens_details": [1]}}', (50, 7, 0), False),
    ('{"usage": {"prompt_tokens": 50}}', (50, None, 0), True),
    ('{"usage": {"completion_tokens": 7}}', (None, 7, 0), True),
    ('{"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}', (None, 0, 0), True),
    ('{"usage": {"prompt_tokens": "50", "completion_tokens": true}}', (None, None, 0), True),
    (f'{{"usage": {{"prompt_tokens": {MOST_TOKENS + 1}, "completion_tokens": 7}}}}', (None, 7, 0), True),
    ('{"usage": [1, 2]}', (None, None, 0), True),
    ("[" * 100_000, (None, None, 0), True),
    ("null", (None, None, 0), True),
]  # fmt: skip


@pytest.mark.parametrize(("body", "counted", "is_estimated"), USAGES)
def test_what_an_endpoint_does_not_count_stays_at_the_reservation(
    body: str, counted: tuple[int | None, int | None, int], is_estimated: bool, tmp_path: Path
) -> None:
    book = BookInMemory()
    purse = Purse(settings(table=prices(tmp_path)), Budget(tokens=10**6), book, "c")
    reserved = purse.reserve(REQUEST).reservation
    purse.settle(reserved, body)
    (found,) = book.reservations
    prompt = reserved.reserved_prompt_tokens if counted[0] is None else counted[0]
    completion = reserved.reserved_completion_tokens if counted[1] is None else counted[1]
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (prompt, completion, counted[2])
    assert (found.state, found.is_estimated) == ("settled", is_estimated)
    cached = counted[2]
    assert found.nanodollars == 2000 * (prompt - cached) + 500 * cached + 8000 * completion
    assert book.use().estimated_tokens == (prompt + completion if is_estimated else 0)


def test_the_limit_of_an_answer_is_lowered_and_never_raised() -> None:
    limited = {**REQUEST, "max_completion_tokens": 3000}
    free = Purse(settings(), Budget(), BookInMemory(), "c").reserve(limited)
    assert free.request is limited
    assert free.reservation.reserved_completion_tokens == 3000
    prompt = free.reservation.reserved_prompt_tokens
    assert Purse(settings(), Budget(tokens=prompt + 9000), BookInMemory(), "c").reserve(limited).request is limited
    lowered = Purse(settings(), Budget(tokens=prompt + 2000), BookInMemory(), "c").reserve(limited).request
    assert lowered == {**REQUEST, "max_completion_tokens": 2000}
    short = {**REQUEST, "max_tokens": 300}  # somebody asked for less than a call is worth otherwise
    assert Purse(settings(), Budget(tokens=prompt + 300), BookInMemory(), "c").reserve(short).request is short


def test_an_answer_without_a_limit_may_fill_the_window(tmp_path: Path) -> None:
    unlimited = {name: value for name, value in REQUEST.items() if name != "max_tokens"}
    use = settings(table=prices(tmp_path, window_tokens=6000))
    _, sent = Purse(use, Budget(tokens=6000), BookInMemory(), "c").reserve(unlimited)
    assert sent is unlimited  # the endpoint takes no limit
    with pytest.raises(BudgetSpent, match=r"0 used, the next call may take 6000\)"):
        Purse(use, Budget(tokens=5999), BookInMemory(), "c").reserve(unlimited)
    with pytest.raises(BudgetSpent, match=r"may take 128000\)"):
        Purse(settings(), Budget(tokens=127_999), BookInMemory(), "c").reserve(unlimited)
    reserved, _ = Purse(settings(), Budget(), BookInMemory(), "c").reserve(unlimited)
    assert reserved.reserved_completion_tokens == ANSWER_TOKENS


def test_text_that_no_encoding_has_is_counted() -> None:
    odd: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "\ud800ü漢字" * 50}]}
    reserved = Purse(settings(), Budget(), BookInMemory(), "c").reserve(odd).reservation
    assert reserved.reserved_prompt_tokens > PROMPT_MARGIN * 50 * len("ü漢字".encode())


# Over HTTP.


def test_a_call_is_stored_before_it_is_sent_and_settled_by_the_endpoints_count(
    endpoint: ScriptedEndpoint, tree: Path, tmp_path: Path
) -> None:
    seen: list[list[Reservation]] = []

    class Watched(BookInMemory):
        def reserve(self, plan: Any) -> Reservation:
            assert len(endpoint.requests) == len(self.reservations)  # nothing went out without
            found = super().reserve(plan)
            seen.append(list(self.reservations))
            return found

    book, calls = Watched(), CallsInMemory("c1")
    details = {"cached_tokens": 900}
    endpoint.answers = [
        answer(reading(1), prompt_tokens=1000, completion_tokens=10),
        answer(stopped("done"), prompt_tokens=1200, completion_tokens=20, prompt_tokens_details=details),
    ]
    use = settings(endpoint.url, prices(tmp_path))
    assert isinstance(make_planner(use, book, calls, dollars=1.0).next_action(context(tree)), Stop)
    assert [r.state for r in seen[1]] == ["settled", "open"]
    assert [r.request_hash for r in book.reservations] == list(calls.calls)
    assert [r["max_tokens"] for r in endpoint.requests] == [r.reserved_completion_tokens for r in book.reservations]
    total = book.use()
    assert (total.n_calls, total.prompt_tokens, total.cached_tokens, total.completion_tokens) == (2, 2200, 900, 30)
    assert total.nanodollars == 2000 * 1300 + 500 * 900 + 8000 * 30
    assert (total.n_estimated, total.n_unpriced, total.estimated_tokens) == (0, 0, 0)
    sizes = [len(json.dumps(request)) for request in endpoint.requests]
    assert all(r.reserved_prompt_tokens > n / 6 for r, n in zip(book.reservations, sizes, strict=True))


def test_without_a_budget_the_request_is_as_before_and_its_use_is_counted(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    book = BookInMemory()
    endpoint.answers = [DONE]
    make_planner(settings(endpoint.url), book).next_action(context(tree))
    assert endpoint.requests[0]["max_tokens"] == book.reservations[0].reserved_completion_tokens == 16_384
    assert (book.use().tokens, book.use().nanodollars, book.use().n_unpriced) == (107, 0, 0)  # on this machine: free


def test_the_campaigns_planning_ends_with_the_budget_and_what_is_used(endpoint: ScriptedEndpoint, tree: Path) -> None:
    book = BookInMemory()
    endpoint.answers = [answer(reading(n), prompt_tokens=3000, completion_tokens=500) for n in range(20)]
    with pytest.raises(BudgetSpent) as spent:
        make_planner(settings(endpoint.url), book, tokens=20_000).next_action(context(tree))
    assert len(endpoint.requests) > 1
    used = 3500 * len(endpoint.requests)
    assert book.use().tokens == used <= 20_000
    assert str(spent.value).startswith(f"the budget of 20000 tokens is used up ({used} used, the next call may take ")
    assert used + int(str(spent.value).rstrip(")").rsplit(" ", 1)[1]) > 20_000


def test_recorded_answers_cost_nothing_again_even_with_nothing_left(endpoint: ScriptedEndpoint, tree: Path) -> None:
    book, calls = BookInMemory(), CallsInMemory("c1")
    endpoint.answers = [called(reading(1)), called(proposal(edits=[FAST]))]
    first = make_planner(settings(endpoint.url), book, calls, tokens=100_000).next_action(context(tree))
    assert isinstance(first, Propose)
    before = book.use()
    assert make_planner(settings(endpoint.url), book, calls, tokens=1).next_action(context(tree)) == first
    assert make_planner(settings(endpoint.url), book, calls, dollars=1e-9).next_action(context(tree)) == first
    assert (book.use(), len(endpoint.requests)) == (before, 2)


BROKEN = Raw(b'{"choices"', headers={"Transfer-Encoding": "chunked"})


REFUSALS = [
    failed(400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."),
    failed(400, "Unrecognized request argument supplied: max_completion_tokens"),
]


def test_a_way_of_asking_that_an_endpoint_refuses_costs_nothing_and_leaves_an_answer_without_a_limit(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    book = BookInMemory()
    endpoint.answers = [*REFUSALS, DONE]
    make_planner(settings(endpoint.url), book, tokens=10**6).next_action(context(tree))
    assert [r.state for r in book.reservations] == ["released", "released", "settled"]
    without = book.reservations[-1]
    assert without.reserved_prompt_tokens + without.reserved_completion_tokens == 128_000
    endpoint.answers = [*REFUSALS, DONE]
    with pytest.raises(BudgetSpent, match=r"0 used, the next call may take 128000"):
        make_planner(settings(endpoint.url), BookInMemory(), tokens=100_000).next_action(context(tree))
    assert endpoint.answers == [DONE]


@pytest.mark.parametrize(
    ("failure", "state"),
    [
        (Raw(b'{"error": {"message": "overloaded"}}', 500), "released"),
        (Raw(b'{"error": {"message": "slow down"}}', 429, {"Retry-After": "0"}), "released"),
        (Raw(b"<html>the model took too long</html>", 504), "open"),
        (BROKEN, "open"),
        (Raw(b"not json at all"), "settled"),
        (Raw(b'{"choices": []}'), "settled"),
    ],
)
def test_each_try_of_a_request_is_reserved_and_what_may_have_been_answered_stays(
    endpoint: ScriptedEndpoint, tree: Path, failure: Raw, state: str
) -> None:
    book = BookInMemory()
    endpoint.answers = [failure, failure, DONE]
    make_planner(settings(endpoint.url), book, tokens=10**6).next_action(context(tree))
    assert [r.state for r in book.reservations] == [state, state, "settled"]
    assert len({r.request_hash for r in book.reservations}) == 1
    kept = [r for r in book.reservations[:2] if r.state != "released"]
    assert all(r.prompt_tokens + r.completion_tokens > ANSWER_TOKENS and r.is_estimated for r in kept)
    assert book.use().tokens == 107 + sum(r.prompt_tokens + r.completion_tokens for r in kept)


def test_a_try_again_that_does_not_fit_is_not_sent(endpoint: ScriptedEndpoint, tree: Path) -> None:
    book = BookInMemory()
    endpoint.answers = [BROKEN, DONE]
    needed = first_prompt_tokens(tree)
    with pytest.raises(BudgetSpent, match="tokens is used up"):
        make_planner(settings(endpoint.url), book, tokens=needed + ANSWER_TOKENS + 100).next_action(context(tree))
    assert [r.state for r in book.reservations] == ["open"]
    assert len(endpoint.answers) == 1


def first_prompt_tokens(tree: Path) -> int:
    """The estimate of the first prompt of a step."""
    book = BookInMemory()
    with ScriptedEndpoint() as server:
        server.answers = [DONE]
        make_planner(settings(server.url), book).next_action(context(tree))
    return book.reservations[0].reserved_prompt_tokens


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_request_that_is_refused_for_good_costs_nothing(endpoint: ScriptedEndpoint, tree: Path, status: int) -> None:
    book = BookInMemory()
    endpoint.answers = [Raw(b'{"error": {"message": "no"}}', status)]
    with pytest.raises(ModelUnavailable):
        make_planner(settings(endpoint.url), book, tokens=10**6).next_action(context(tree))
    assert [r.state for r in book.reservations] == ["released"]
    assert book.use() == ModelUse()


def test_an_endpoint_that_is_down_costs_nothing(tree: Path) -> None:
    server, book = ScriptedEndpoint(), BookInMemory()
    server.close()
    with pytest.raises(ModelUnavailable, match="can't be reached"):
        make_planner(settings(server.url), book, tokens=10**6).next_action(context(tree))
    assert [r.state for r in book.reservations] == ["released"] * 3


def test_an_answer_that_came_too_late_stays_reserved(endpoint: ScriptedEndpoint, tree: Path) -> None:
    book = BookInMemory()
    endpoint.answers = [Raw(delay_s=30.0)]
    use, patience = settings(endpoint.url), QUICK._replace(call_s=60.0)
    planner = LlmPlanner(use, CallsInMemory("c1"), patience, purse=Purse(use, Budget(tokens=10**6), book, "c1"))
    with pytest.raises(TimeUp):
        planner.next_action(context(tree, seconds_left=3.0))
    assert [r.state for r in book.reservations] == ["open"]
    assert (book.use().n_open, book.use().n_calls, book.use().n_estimated) == (1, 1, 1)
    with pytest.raises(TimeUp):  # no time to ask, so nothing to reserve
        make_planner(settings(endpoint.url), book, tokens=10**6).next_action(context(tree, seconds_left=0.0))
    assert len(book.reservations) == 1


def test_a_count_above_the_reservation_is_kept_as_it_is_and_ends_the_next_call(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    book = BookInMemory()
    endpoint.answers = [answer(reading(1), prompt_tokens=50_000, completion_tokens=9_000), DONE]
    with pytest.raises(BudgetSpent, match=r"the budget of 30000 tokens is used up \(59000 used"):
        make_planner(settings(endpoint.url), book, tokens=30_000).next_action(context(tree))
    assert (book.use().tokens, len(endpoint.requests)) == (59_000, 1)


def test_an_answer_is_acted_on_though_it_took_more_than_was_reserved(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [answer(proposal(edits=[FAST]), prompt_tokens=50_000, completion_tokens=9_000)]
    action = make_planner(settings(endpoint.url), BookInMemory(), tokens=30_000).next_action(context(tree))
    assert isinstance(action, Propose)


def test_a_model_of_unknown_price_has_no_dollar_budget_but_may_have_one_in_tokens(tmp_path: Path) -> None:
    use = settings("https://models.example/v1")
    spec = CampaignSpec(target="t", planner="llm", budget=Budget(dollars=5))
    with pytest.raises(WrongUse) as refused:
        build_planner(spec, use)
    said = str(refused.value)
    for needed in ("price of model 'm' at models.example is not known", "INFRA_AGENT_PRICES", "[[models]]", "--tokens"):
        assert needed in said
    build_planner(CampaignSpec(target="t", planner="llm", budget=Budget(tokens=5)), use)
    # The advice, taken literally, works.
    table = tmp_path / "prices.toml"
    table.write_text(said[said.index("[[models]]") : said.index("Or give")])
    build_planner(spec, settings("https://models.example/v1", table))


def test_a_free_model_uses_up_no_dollars(endpoint: ScriptedEndpoint, tree: Path) -> None:
    book = BookInMemory()
    endpoint.answers = [answer(reading(n), prompt_tokens=10**6, completion_tokens=10**5) for n in range(5)] + [DONE]
    make_planner(settings(endpoint.url), book, dollars=1e-9).next_action(context(tree))
    assert (book.use().n_calls, book.use().nanodollars, book.use().n_unpriced) == (6, 0, 0)


def test_a_price_has_no_rounding_in_its_favour() -> None:
    price = Price.model_validate({"match": ("m",), "input": "0.0001", "output": "0.0003"})
    assert price.cost(1, 0, 0) == 1  # a tenth of a nanodollar, rounded up
    assert price.cost(10, 0, 10) == 4
    assert price.completion_tokens(3) == 10
