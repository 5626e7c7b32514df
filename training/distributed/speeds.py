"""Who makes a group slower than it is without them. Needs no torch."""

from collections.abc import Mapping


def slow_members(speeds: Mapping[str, float], leader: str) -> list[str]:
    """Return the members without whom the others would be faster, the slowest first.

    Each rank has an equal share of a batch, so that k ranks are as fast as k times the slowest of them.

    Args:
        speeds: samples/s of each rank alone, by name.
        leader: stays in any case.
    """
    members = sorted((name for name in speeds if name != leader), key=lambda name: speeds[name], reverse=True)
    kept = max(
        range(len(members) + 1),
        key=lambda count: (count + 1) * min(speeds[name] for name in (leader, *members[:count])),
    )
    return members[kept:][::-1]
