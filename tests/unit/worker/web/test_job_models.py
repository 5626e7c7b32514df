"""Copies of models that are in a store: made once, and there as long as a request uses them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from preflight.wire import JobState
from training.artifacts.model_dir import MANIFEST, MODEL
from training.artifacts.predict_server import MAX_MODELS
from worker.config.settings import Settings
from worker.web.routes.errors import ApiError
from worker.web.routes.files import ModelFiles
from worker.web.routes.predict import JobModels


def state_of(job_id: str) -> JobState:
    return JobState(job_id=job_id, status="finished")


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A store with some models more than copies are kept."""
    for number in range(MAX_MODELS + 2):
        (tmp_path / f"bucket/{number}").mkdir(parents=True)
        for name in (MODEL, MANIFEST):
            (tmp_path / f"bucket/{number}" / name).write_text(f"{name} of {number}")
    return tmp_path / "bucket"


@pytest.fixture
def models(bucket: Path, tmp_path: Path) -> JobModels:
    return JobModels(ModelFiles(Settings(artifact_dir=tmp_path / "none", artifact_url=bucket.as_uri())))


def test_requests_that_come_together_share_one_copy(models: JobModels) -> None:
    async def ask() -> tuple[Path, str]:
        async with models.directory(state_of("0")) as directory:
            await asyncio.sleep(0.2)
            return directory, (directory / MODEL).read_text()

    async def ask_at_once() -> set[tuple[Path, str]]:
        return {*await asyncio.gather(*(ask() for _ in range(4)))}

    ((directory, text),) = asyncio.run(ask_at_once())
    assert text == f"{MODEL} of 0"
    assert directory.exists()
    models.close()
    assert not directory.exists()


def test_a_copy_is_kept_while_it_is_used(models: JobModels) -> None:
    """However many models are asked for meanwhile; afterwards the oldest are removed."""

    async def ask() -> None:
        async with AsyncExitStack() as stack:
            used = [
                await stack.enter_async_context(models.directory(state_of(str(number))))
                for number in range(MAX_MODELS + 2)
            ]
            assert [(each / MODEL).read_text()[-1] for each in used] == [str(number) for number in range(len(used))]
        assert sum(each.exists() for each in used) == MAX_MODELS
        models.close()

    asyncio.run(ask())


def test_a_copy_that_failed_is_made_again(models: JobModels, bucket: Path) -> None:
    async def ask() -> str:
        async with models.directory(state_of("0")) as directory:
            return (directory / MODEL).read_text()

    (bucket / "0" / MODEL).unlink()
    with pytest.raises(ApiError, match="is not there"):
        asyncio.run(ask())
    (bucket / "0" / MODEL).write_text("again")
    assert asyncio.run(ask()) == "again"
    models.close()
