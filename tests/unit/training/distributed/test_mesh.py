"""Who leaves a group whose ranks cannot all reach each other."""

import pytest

from training.distributed.mesh import gives_way


@pytest.mark.parametrize(("failed", "leaves"), [
    ([], []), ([1, 2], [2]),
    ([0, 1], [1]),  # the leader stays
    ([0, 1, 2, 3], [3]),
    ([1], []),  # whom it did not reach has ended, and forms no round any more
    ([0], []),
])  # fmt: skip
def test_the_last_of_those_that_did_not_connect_gives_way(failed: list[int], leaves: list[int]) -> None:
    assert [rank for rank in range(4) if rank in failed and gives_way(rank, failed)] == leaves
