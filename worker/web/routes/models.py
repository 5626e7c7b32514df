"""Models with names over HTTP: list, show, promote, roll back, remove, predict."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from preflight import Client
from preflight.errors import ArtifactError
from preflight.wire.validation_errors import to_invalid_config
from worker.models.promoting import promote_artifact
from worker.models.records import ALIAS_PATTERN, Alias, Promotion, UnknownAlias
from worker.models.store import Author, ModelStore
from worker.web.models import ChangeAlias, ModelVersion, NamedModel, NamedModels, PromoteModel
from worker.web.predicting.bodies import BODY
from worker.web.predicting.service import Predictions
from worker.web.routes.errors import BODY_ERRORS, if_writable, problems, read_json, request_body
from worker.web.routes.jobs import require_job
from worker.web.routes.predict import JobModels

AliasName = Annotated[str, Path(json_schema_extra={"pattern": ALIAS_PATTERN})]
"""Described, not validated: the store refuses another name in a sentence."""
AliasOrVersion = Annotated[
    str, Path(json_schema_extra={"pattern": ALIAS_PATTERN.removesuffix("$") + "(@[0-9a-f]{8,64})?$"})
]
C = TypeVar("C", bound=ChangeAlias)


class ModelRoutes:
    """Routes under /v1/models."""

    def __init__(
        self, client: Client, store: ModelStore, jobs: JobModels, predictions: Predictions, *, read_only: bool
    ) -> None:
        self._client, self._store, self._jobs, self._predictions = client, store, jobs, predictions
        self._read_only = read_only

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        path, writable = "/v1/models/{alias}", if_writable(read_only=self._read_only, command="preflight models")
        app.get("/v1/models", tags=["models"], responses=problems())(self.models)
        app.get(path, tags=["models"], responses=problems(404))(self.model)
        for action, route, body in (
            ("promote", self.promote, "PromoteModel"),
            ("rollback", self.rollback, "ChangeAlias"),
        ):
            app.post(
                f"{path}/{action}",
                tags=["models"],
                dependencies=writable,
                responses=problems(*BODY_ERRORS, 404, 409, 502),
                openapi_extra=request_body({"$ref": f"#/components/schemas/{body}"}),
            )(route)
        app.delete(path, tags=["models"], dependencies=writable, status_code=204, responses=problems(403, 404, 422))(
            self.remove
        )
        app.post(
            f"{path}/predict", tags=["models"], openapi_extra=dict(BODY), response_class=Response,
            responses=problems(*BODY_ERRORS, 404, 429, 501),
        )(self.recognize)  # fmt: skip

    async def models(self) -> NamedModels:
        """List the aliases and the models that they point to."""
        return NamedModels(models=await run_in_threadpool(lambda: tuple(map(self._listed, self._store.names()))))

    async def model(self, alias: AliasName) -> NamedModel:
        """Return an alias with its history."""
        return await self._changed(lambda: self._store.alias(alias))

    async def promote(self, alias: AliasName, request: Request) -> NamedModel:
        """Have an alias point to the model of a finished job."""
        change = await _read(request, PromoteModel)
        state = await run_in_threadpool(require_job, self._client, change.job_id)
        author = Author(by=change.by, why=change.why)
        try:
            async with self._jobs.directory(state) as artifact:
                return await self._changed(
                    lambda: promote_artifact(self._store, alias, artifact, author, expected=change.expect)
                )
        finally:
            self._predictions.forget(alias)

    async def rollback(self, alias: AliasName, request: Request) -> NamedModel:
        """Have an alias point to the model before the one in use."""
        change = await _read(request, ChangeAlias)
        author = Author(by=change.by, why=change.why)
        try:
            return await self._changed(lambda: self._store.rollback(alias, author, expected=change.expect))
        finally:
            self._predictions.forget(alias)

    async def remove(self, alias: AliasOrVersion) -> Response:
        """Remove an alias with its history, or one earlier model of it as `alias@hash`."""
        await run_in_threadpool(self._store.remove, alias)
        self._predictions.forget(alias)
        return Response(status_code=204)

    async def recognize(self, alias: AliasName, request: Request, *, reading: bool = False) -> Response:
        """Recognize pictures by the model of an alias: one as the body, several as multipart or as base64 in JSON.

        `reading=true` adds what the network saw of each.
        """
        body = await request.body()
        with self._predictions.place() as place:
            place.receive(len(body))
            place.wait()
            answer = await self._predictions.answer(
                alias, request.headers.get("content-type", ""), body, reading=reading
            )
        return Response(answer, media_type="application/json")

    async def _changed(self, action: Callable[[], Alias]) -> NamedModel:
        return await run_in_threadpool(lambda: self._named(action()))

    def _listed(self, name: str) -> NamedModel:
        try:
            alias = self._store.alias(name)
        except (ArtifactError, UnknownAlias) as error:  # damaged, or just removed
            return NamedModel(alias=name, message=error.message)
        return NamedModel(alias=name, current=self._version(alias.current))

    def _named(self, alias: Alias) -> NamedModel:
        history = tuple(self._version(each) for each in reversed(alias.history))
        return NamedModel(alias=alias.alias, current=history[0], history=history, shape=self._store.shape(alias))

    def _version(self, promotion: Promotion) -> ModelVersion:
        return ModelVersion(
            number=promotion.number, action=promotion.action, at=promotion.at, by=promotion.by, why=promotion.why,
            job_id=promotion.job_id, model=promotion.model, dataset=promotion.dataset,
            test_accuracy=promotion.test_accuracy, model_sha256=promotion.model_sha256,
            former=promotion.former, kept=self._store.keeps(promotion),
        )  # fmt: skip


async def _read(request: Request, kind: type[C]) -> C:
    """Return the body of a change; raises `InvalidConfig` and `ApiError`."""
    try:
        return kind.model_validate(await read_json(request))
    except ValidationError as error:
        raise to_invalid_config(error, kind.model_json_schema()) from error
