"""One EXISTS is read back as what each of its keys says."""

from collections import Counter
from itertools import product

import pytest

from worker.queue.loop.key_existence import KeyExistence


@pytest.mark.parametrize("others", [(), ("a",), ("a", "b", "c", "d", "e")])
def test_every_combination_is_told_apart(others: tuple[str, ...]) -> None:
    existence = KeyExistence(["x", "y"], others)
    named = Counter(existence.names)
    answers = set()
    for bits in product([False, True], repeat=2 + len(others)):
        existing = {key for key, exists in zip(("x", "y", *others), bits, strict=True) if exists}
        singles, count = existence.read(sum(named[key] for key in existing))
        assert (tuple(singles), count) == (bits[:2], sum(bits[2:]))
        answers.add((tuple(singles), count))
    assert len(answers) == 4 * (len(others) + 1)
