"""The list of promises and of the lines that hold them (`make mutations` breaks each) is that of today's code."""

from pathlib import Path

import pytest

from tools.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.promise.replace(" ", "-"))
def test_each_line_and_each_test_is_there(mutation: Mutation) -> None:
    assert (ROOT / mutation.path).read_text().count(mutation.line) == 1
    path, _, name = mutation.test.partition("::")
    assert not name or f"def {name}(" in Path(ROOT / path).read_text()
