"""Reads that requests share: one at a time for each question, a bounded number at once."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.worker.services import wait_until

from worker.web.routes import reads
from worker.web.routes.errors import ApiError
from worker.web.routes.reads import Slots, TtlCache


def test_a_question_is_read_once_for_all_who_ask_it_at_once() -> None:
    asked: list[str] = []

    def read(question: str) -> str:
        asked.append(question)
        time.sleep(0.05)
        return question.upper()

    cache = TtlCache(read)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(cache.get, ["a", "b"] * 8)) == {"A", "B"}
    assert sorted(asked) == ["a", "b"]


def test_a_value_is_forgotten_once_it_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that many questions do not fill the memory."""
    monkeypatch.setattr(reads, "TTL_SECONDS", 0.01)
    cache: TtlCache[int, list[int]] = TtlCache(lambda question: [question] * 1000)
    for number in range(50):
        cache.get(number)
        time.sleep(0.02)
    assert len(cache._entries) <= 2


def test_a_value_that_was_slow_to_read_is_kept_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "TTL_SECONDS", 0.0)
    reads_done = []

    def slow(_: str) -> int:
        reads_done.append(1)
        time.sleep(0.3)
        return len(reads_done)

    cache = TtlCache(slow)
    assert [cache.get("a"), cache.get("a")] == [1, 1]


def test_an_error_is_read_again() -> None:
    answers = iter([ValueError("once"), 7])

    def read(_: str) -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cache = TtlCache(read)
    with pytest.raises(ValueError, match="once"):
        cache.get("a")
    assert cache.get("a") == 7


def test_more_requests_than_may_wait_are_refused() -> None:
    """Those that wait hold no thread of others; a slot is free again after each."""
    released, running = threading.Event(), []

    def block() -> str:
        running.append(1)
        released.wait(20)
        return "done"

    async def ask() -> None:
        slots = Slots(threads=1, waiting=2)
        tasks = [asyncio.create_task(slots.run(block)) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(ApiError, match="3 requests of this kind") as refused:
            await slots.run(block)
        assert (refused.value.status, refused.value.problem.reason) == (429, "too_busy")
        await asyncio.to_thread(wait_until, lambda: len(running) == 1)
        released.set()
        assert await asyncio.gather(*tasks) == ["done"] * 3
        assert await slots.run(block) == "done"

    asyncio.run(ask())
