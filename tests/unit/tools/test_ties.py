"""The 95th percentile decides ties no better than the mean, and wrongly where the slow steps are few and very slow."""

from tools.ablation.ties import simulate


def test_the_mean_tells_the_faster_plan_where_the_percentile_is_wrong() -> None:
    found = simulate(100)
    assert found["none slow, or 8 % of 1.5x", 240]["mean"] > 0.95
    rare = found["8 % of 1.1x, or 3 % of 3x", 240]
    assert rare["mean"] > 0.8 > 0.5 > rare["95th percentile"]
