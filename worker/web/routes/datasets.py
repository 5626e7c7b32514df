"""Imported data over HTTP: what there is, its samples, uploads, and deletion."""

import csv
import io
from collections.abc import Callable
from typing import Annotated, Final, TypeVar

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import JsonValue, ValidationError
from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool

from preflight.errors import InvalidConfig
from preflight.numbers import plural
from preflight.wire.validation_errors import to_invalid_config
from training.catalog.version import NAME, Reference, Version
from training.importing.pairs import Kind
from training.importing.revision import require_newest
from training.importing.sources.detect import FORMATS
from worker.config.settings import Settings
from worker.imports.records import MAX_OPEN, Imports, ImportState, data_set, new_import_id
from worker.imports.uploads import stored_name
from worker.jobs.local.erasing import SampleUse, sample_use
from worker.jobs.local.import_options import import_options
from worker.jobs.local.importing import jobs_that_need
from worker.web.datasets.models import DatasetDetail, DatasetIssues, DatasetPairs, Datasets, RelabelSamples
from worker.web.datasets.shelf import Shelf
from worker.web.datasets.sprites import MAX_SAMPLES, OfClass, Sprite, sprite
from worker.web.datasets.uploading import Uploader
from worker.web.routes.errors import (
    BODY_ERRORS,
    EMPTY,
    ApiError,
    if_writable,
    problems,
    read_json,
    request_body,
    require_empty,
)
from worker.web.routes.reads import Slots

THREADS: Final = 2
MAX_WAITING: Final = 32
BODY: Final[dict[str, JsonValue]] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary", "minLength": 1}}},
    }
}
PNG: Final[dict[int | str, dict[str, object]]] = {
    200: {
        "description": "a grid of samples",
        "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
    }
}
SIZE: Final[dict[str, JsonValue]] = {"pattern": "^([1-9][0-9]?|1[01][0-9]|12[0-8])$"}
SHARE: Final[dict[str, JsonValue]] = {"pattern": r"^0\.[0-8][0-9]{0,3}$"}
"""Pattern in the description of the interface; the service takes more forms, and explains itself what is wrong."""
NUMBERS: Final = r"^[0-9]{1,8}(,[0-9]{1,8}){0,59}$"
MOST_LISTED: Final = 200
"""Most duplicates or issues in one answer."""
SampleNumber = Annotated[int, Path(ge=0, le=10_000_000, description="number of the sample in the version")]
DatasetName = Annotated[str, Path(json_schema_extra={"pattern": f"^{NAME.pattern}$"})]
T = TypeVar("T")


def one_of(*values: str) -> dict[str, JsonValue]:
    """Return the part of a schema that lists values."""
    return {"enum": [*values]}


class DatasetRoutes:
    """Routes under /v1/datasets."""

    def __init__(
        self, settings: Settings, imports: Imports, uploader: Uploader, shelf: Shelf, *, read_only: bool
    ) -> None:
        self._settings, self._imports, self._uploader, self._shelf = settings, imports, uploader, shelf
        self._read_only = read_only
        self._slots = Slots(THREADS, MAX_WAITING)

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        path, writable = "/v1/datasets/{name}", if_writable(read_only=self._read_only, command="preflight data")
        app.get("/v1/datasets", tags=["datasets"], responses=problems(429))(self.datasets)
        app.get(path, tags=["datasets"], responses=problems(404, 429))(self.dataset)
        app.get(
            f"{path}/samples", tags=["datasets"], responses={**problems(404, 409, 429), **PNG}, response_class=Response
        )(self.samples)
        sample = f"{path}/samples/{{sample}}"
        app.get(sample, tags=["datasets"], responses=problems(404, 409, 422, 429))(self.sample)
        app.delete(
            sample, tags=["datasets"], dependencies=writable, status_code=202, response_model=ImportState,
            responses=problems(403, 404, 409, 422, 429),
        )(self.erase_sample)  # fmt: skip
        app.get(f"{path}/duplicates", tags=["datasets"], responses=problems(404, 409, 429))(self.duplicates)
        app.get(f"{path}/issues", tags=["datasets"], responses=problems(404, 409, 429))(self.issues)
        app.post(
            f"{path}/issues", tags=["datasets"], dependencies=writable, status_code=202, response_model=ImportState,
            responses=problems(*BODY_ERRORS, 404, 409, 429), openapi_extra=request_body(EMPTY),
        )(self.find_issues)  # fmt: skip
        app.post(
            path, tags=["datasets"], dependencies=writable, status_code=202, openapi_extra=BODY,
            response_model=ImportState, responses=problems(*BODY_ERRORS, 409, 429, 507),
        )(self.upload)  # fmt: skip
        app.post(
            f"{path}/relabel", tags=["datasets"], dependencies=writable, status_code=202, response_model=ImportState,
            responses=problems(*BODY_ERRORS, 404, 409, 429, 507),
            openapi_extra=request_body({"$ref": "#/components/schemas/RelabelSamples"}),
        )(self.relabel)  # fmt: skip
        app.delete(
            path, tags=["datasets"], dependencies=writable, status_code=202, response_model=ImportState,
            responses=problems(403, 404, 409, 422, 429),
        )(self.remove_dataset)  # fmt: skip

    async def datasets(self) -> Datasets:
        """List imported data sets and open imports."""
        return await self._run(self._list)

    async def dataset(self, name: str) -> DatasetDetail:
        """Return a data set, and what the import of `photos@2`, or for `photos` of the newest version, has found."""
        return await self._run(lambda: self._shelf.detail(name))

    async def samples(
        self, name: str, label: Annotated[int, Query(ge=0, le=1_000, description="number of the class")] = 0,
        first: Annotated[int, Query(ge=0, le=10_000_000, description="samples to skip")] = 0,
        count: Annotated[int, Query(ge=1, le=MAX_SAMPLES)] = MAX_SAMPLES,
        samples: Annotated[str | None, Query(pattern=NUMBERS, description="numbers, in place of a class")] = None,
    ) -> Response:  # fmt: skip
        """Return samples of a class, or those that are named, as a grid in one PNG.

        `x-samples` has their numbers, `x-grid` width and height of a sample, and the columns of the grid.
        """
        wanted = OfClass(label, first, count) if samples is None else [int(each) for each in samples.split(",")]
        found: Sprite = await self._run(lambda: sprite(self._shelf.store(name), wanted))
        if not found.samples:
            what = f"class {label} has no samples from {first} on" if samples is None else "there are no such samples"
            raise ApiError(404, "no_samples", what)
        headers = {
            "x-samples": ",".join(map(str, found.samples)), "x-grid": f"{found.width},{found.height},{found.columns}",
            "cache-control": "no-store",
        }  # fmt: skip
        return Response(found.png, media_type="image/png", headers=headers)

    async def sample(self, name: str, sample: SampleNumber) -> SampleUse:
        """Return what a sample is, and what refers to it: versions, jobs that wait or run, and trained models."""
        return await self._run(lambda: sample_use(name, sample, self._settings))

    async def erase_sample(
        self, name: str, sample: SampleNumber,
        sha256: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$", description="of the version seen")] = None,
        by: Annotated[str, Query(max_length=200, description="who deletes it, for the versions")] = "http",
    ) -> Response:  # fmt: skip
        """Have a worker delete a sample: its picture leaves every version of the data set and does not come back.

        Where other samples were deleted since `sha256` was seen, the numbers are others, and it is refused.
        """
        version = await self._run(lambda: self._shelf.find(name))
        if sha256 not in (None, version.sha256):
            message = f"samples of {version.reference} were deleted since you looked at it; look at it again"
            raise ApiError(409, "changed", message, "sha256")
        if sample >= version.samples:
            raise ApiError(404, "no_samples", f"{version.reference} has no sample {sample}", "sample")
        options = {"sample": str(sample), "sha256": version.sha256, "by": by}
        return await self._open(
            ImportState(import_id=new_import_id(), kind="erase", name=version.reference, options=options)
        )

    async def duplicates(
        self, name: str, kind: Kind = "exact", first: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        count: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 50,
    ) -> DatasetPairs:  # fmt: skip
        """Return duplicates of a version in pairs: equal pictures, nearly equal ones, equal ones of two classes."""
        return await self._run(lambda: self._shelf.pairs(name, kind, first, count))

    async def issues(
        self, name: str, first: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        count: Annotated[int, Query(ge=1, le=MOST_LISTED)] = MAX_SAMPLES,
    ) -> DatasetIssues:  # fmt: skip
        """Return labels that look wrong, the most suspicious first, and what a search for them costs."""
        return await self._run(lambda: self._shelf.issues(name, first, count))

    async def find_issues(self, name: str, request: Request) -> Response:
        """Have a worker look for labels that look wrong: it trains a small network twice, each time without a half."""
        await require_empty(request, "search")
        version = await self._run(lambda: self._shelf.find(name))
        return await self._open(ImportState(import_id=new_import_id(), kind="issues", name=version.reference))

    async def upload(
        self, name: DatasetName, request: Request,
        file: Annotated[str, Query(max_length=200, description="name of the file")] = "",
        size: Annotated[str | None, Query(max_length=20, json_schema_extra=SIZE)] = None,
        channels: Annotated[str | None, Query(max_length=20, json_schema_extra=one_of("auto", "gray", "rgb"))] = None,
        ink: Annotated[str | None, Query(max_length=20, json_schema_extra=one_of("auto", "dark", "light"))] = None,
        test: Annotated[str | None, Query(max_length=20, json_schema_extra=SHARE)] = None,
        validation: Annotated[str | None, Query(max_length=20, json_schema_extra=SHARE)] = None,
        group: Annotated[str | None, Query(max_length=200)] = None,
        format: Annotated[str | None, Query(max_length=20, json_schema_extra=one_of(*FORMATS))] = None,
        max_refused: Annotated[str | None, Query(max_length=20, json_schema_extra=SHARE)] = None,
        keep_duplicates: Annotated[bool, Query()] = False,
    ) -> Response:  # fmt: skip
        """Upload a zip, tar, Parquet, npz or CSV file: a worker imports it as the next version of the data set.

        The options are those of `preflight data add`. The answer has the id of the import, whose events say the rest.
        """
        texts = {
            "size": size, "channels": channels, "ink": ink, "test": test, "validation": validation, "group": group,
            "format_": format, "max_refused": max_refused, "keep_duplicates": "true" if keep_duplicates else None,
        }  # fmt: skip
        options = {option: text for option, text in texts.items() if text is not None}
        await self._run(lambda: self._require_importable(name, options))
        state = ImportState(import_id=new_import_id(), name=name, options=options)
        stored = stored_name(state.import_id, file)
        size_ = await self._uploader.receive(request, stored)
        shown = "".join(letter if letter.isprintable() else "?" for letter in file) or stored
        return await self._open(state.model_copy(update={"file": shown, "stored": stored, "bytes": size_}))

    async def relabel(self, name: str, request: Request) -> Response:
        """Have a worker move samples to another class, or leave them out, as the next version.

        `name` is the newest version as `photos@2`: where another one came in between, it is refused.
        """
        try:
            asked = RelabelSamples.model_validate(await read_json(request))
        except ValidationError as error:
            raise to_invalid_config(error, RelabelSamples.model_json_schema()) from error
        version = (await self._run(lambda: self._newest(name))).reference
        state = ImportState(import_id=new_import_id(), kind="relabel", name=version, options={"by": asked.by})
        stored = stored_name(state.import_id, ".csv")
        table = io.StringIO()
        csv.writer(table).writerows((number, label or "") for number, label in asked.changes.items())
        await self._uploader.store(stored, table.getvalue().encode())
        shown = plural(len(asked.changes), "change")
        return await self._open(state.model_copy(update={"file": shown, "stored": stored}))

    async def remove_dataset(self, name: str) -> Response:
        """Have a worker remove a data set, or a version of it as `photos@2`.

        It is refused while a job or an alias needs it.
        """
        await self._run(lambda: self._require_removable(name))
        state = ImportState(import_id=new_import_id(), kind="remove", name=name)
        return await self._open(state)

    async def _open(self, state: ImportState) -> Response:
        """Open a task for a worker; a data set has one open task at a time."""
        try:
            opened = await run_in_threadpool(lambda: self._imports.open(state))
        except RedisError:
            await self._uploader.discard(state.stored)
            raise
        if not opened:
            await self._uploader.discard(state.stored)
            raise self._busy(state.name)
        found = await run_in_threadpool(lambda: self._imports.find(state.import_id))
        headers = {"location": f"{self._settings.web_prefix.rstrip('/')}/v1/imports/{state.import_id}"}
        return JSONResponse((found or state).model_dump(mode="json"), 202, headers)

    def _newest(self, name: str) -> Version:
        """Return a version; raises `ApiError` where there is a newer one."""
        version = self._shelf.find(name)
        try:
            require_newest(self._shelf.catalog, version)
        except InvalidConfig as error:
            raise ApiError(409, "not_newest", error.message, "name") from error
        return version

    def _list(self) -> Datasets:
        try:
            used = self._uploader.used()
        except Exception:  # clients of stores have their own errors
            used = self._shelf.bytes()
        return Datasets(
            datasets=self._shelf.datasets(), imports=tuple(self._imports.opened()), used_bytes=used,
            most_bytes=self._uploader.most, most_upload_bytes=self._uploader.each, read_only=self._read_only,
        )  # fmt: skip

    def _require_importable(self, name: str, options: dict[str, str]) -> None:
        import_options(options)
        self._shelf.catalog.require_free(name)
        opened = self._imports.opened()
        if any(data_set(state) == name for state in opened):
            raise self._busy(name)
        if len(opened) >= MAX_OPEN:
            raise ApiError(429, "too_busy", f"{MAX_OPEN} imports wait or run already; wait until one has ended")

    def _require_removable(self, name: str) -> None:
        self._shelf.find(name)
        asked, catalog = Reference.parse(name), self._shelf.catalog
        needing = jobs_that_need(asked, catalog, self._settings)
        if needing:
            raise ApiError(
                409, "in_use",
                f"{name} is needed by {plural(len(needing), 'waiting or running job')} ({', '.join(needing[:5])}); "
                "wait until they have ended, or cancel them", "name",
            )  # fmt: skip
        catalog.require_unaliased(name)

    def _busy(self, name: str) -> ApiError:
        return ApiError(
            409, "import_open", f"an import of {name.partition('@')[0]} is open already; wait for its end, or cancel it"
        )

    async def _run(self, action: Callable[[], T]) -> T:
        """Return the result of `action` in a thread; raises `ApiError` for an unknown data set or sample."""
        try:
            return await self._slots.run(action)
        except InvalidConfig as error:
            if error.field in ("dataset", "sample"):
                field = "name" if error.field == "dataset" else error.field
                raise ApiError(404, f"unknown_{error.field}", error.message, field) from error
            raise
