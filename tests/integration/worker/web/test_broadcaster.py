"""The broadcaster in an event loop of the test, with a real Redis."""

import asyncio

from redis.asyncio import Redis

from worker.state.supervision import Supervisor
from worker.web.streams.broadcaster import Broadcaster


def test_it_closes_though_a_cancellation_is_lost(redis_url: str) -> None:
    """As `asyncio.wait_for` loses one now and then before Python 3.12; the service hung at its end."""
    checks = 0

    async def is_active(_: str) -> bool:
        nonlocal checks
        checks += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if checks > 1:
                raise
        return True

    async def watch_and_close() -> None:
        broadcaster, supervisor = Broadcaster(Redis.from_url(redis_url), is_active), Supervisor()
        broadcaster.start(supervisor)
        await broadcaster.subscribe("job")
        while not checks:
            await asyncio.sleep(0.01)
        supervisor.close()
        async with asyncio.timeout(10):
            await broadcaster.close()

    asyncio.run(watch_and_close())
    assert checks == 1
