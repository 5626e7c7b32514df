"""The search language: what each term means, and one sentence for what means nothing."""

import pytest

from preflight.errors import InvalidConfig
from worker.web.listing.grammar import MAX_LENGTH, parse_order, parse_search


@pytest.mark.parametrize(("text", "sql", "values"), [
    ("model:CNN", "instr(lower(model), ?)", ["cnn"]), ("model=cnn", "coalesce(model, '') = ?", ["cnn"]),
    ('worker!="a b"', "coalesce(worker, '') != ?", ["a b"]), ("accuracy>99%", "accuracy > ?", [0.99]),
    ("accuracy>=.5", "accuracy >= ?", [0.5]), ("loss<1e-3", "loss < ?", [0.001]), ("speed:10k", "speed = ?", [10_000]),
    ("status:failed", "status = ?", ["failed"]), ("deterministic=true", "deterministic = ?", [1]),
    ("seed:9223372036854775807", "seed = ?", [2**63 - 1]), ("seed>9223372036854775808", "seed > ?", [2.0**63]),
    ("started>1970-01-01T00:00:10+00:00", "started > ?", [10]), ("tag:Base", "instr(lower(tags), ?)", ["base"]),
    ("tag=base", "instr(tags, ?) > 0", ["\nbase\n"]), ("tag!=base", "instr(tags, ?) = 0", ["\nbase\n"]),
])  # fmt: skip
def test_a_term_is_a_condition(text: str, sql: str, values: list[object]) -> None:
    (found,) = parse_search(text)
    assert (found.sql, [*found.values]) == (sql, values)


def test_a_duration_has_units() -> None:
    assert [parse_search(f"took<{text}")[0].values for text in ("90", "5m", "2H", "1d")] == [
        [90],
        [300],
        [7200],
        [86400],
    ]


def test_every_term_must_hold_and_no_text_is_code() -> None:
    """Words, quotes and markup are values, never SQL."""
    found = parse_search("""  one model:two '; "DROP TABLE jobs" <script> x:<b>""".replace(" x:<b>", " id:<b>"))
    assert len(found) == 6
    assert [found[number].values[0] for number in range(2, 6)] == ["';", "drop table jobs", "<script>", "<b>"]
    assert not any("DROP" in condition.sql or "<" in condition.sql for condition in found)
    assert parse_search("") == parse_search("   ") == []


@pytest.mark.parametrize(("text", "sentence"), [
    ("modle:cnn", "'modle' is not a field of a job (did you mean 'model'?)"),
    ("<script> accuracy>high", "accuracy is compared with 'high'; write 0.99 or 99%"),
    ("took<5y", "took is compared with '5y'"), ("status:runing", "did you mean 'running'"),
    ("model>3", "model is a text and has no order; write model:3"), ("started>yesterday", "write 2026-01-31"),
    ("seed:", "seed is compared with ''; write a number"), ("deterministic:maybe", "write true or false"),
    ("x" * (MAX_LENGTH + 1), f"may have {MAX_LENGTH}"),
])  # fmt: skip
def test_what_means_nothing_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_search(text)
    assert sentence in refused.value.message
    assert refused.value.field == "q"


def test_an_order_names_a_field() -> None:
    """Jobs without a value come last in both directions."""
    assert parse_order("-accuracy") == "(accuracy) IS NULL, accuracy DESC, job_id"
    assert parse_order("id").startswith("(job_id) IS NULL, job_id ASC")
    assert parse_order("").startswith("running DESC, updated DESC")
    with pytest.raises(InvalidConfig, match="'job_id; DROP' is not a field"):
        parse_order("job_id; DROP")
