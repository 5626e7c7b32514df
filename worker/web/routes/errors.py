"""Errors of the HTTP interface: every one is answered with a `Problem`."""

import json
from collections.abc import Mapping
from typing import Final

from fastapi import Depends, FastAPI, Request, params
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import JsonValue
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from preflight.errors import DatasetError, InvalidConfig, MissingPackage, PreflightError
from preflight.redis.retry import describe_error
from worker.config.settings import Settings
from worker.models.records import AliasChanged, UnknownAlias
from worker.web.models import Problem

RETRY_AFTER_SECONDS: Final = 2
"""`retry-after` while Redis is away."""

PROBLEMS: Final[dict[int | str, dict[str, object]]] = {
    code: {"model": Problem, "description": description}
    for code, description in {
        400: "invalid JSON, or a token in the address", 401: "token missing or wrong", 404: "no such job or file",
        403: "a page of another origin, or a read-only service", 408: "too slow", 409: "not in this state",
        413: "too large", 415: "another content type is needed", 416: "a range behind the end",
        421: "wrong host, without a token", 422: "a field is wrong",
        429: "too many jobs are watched, or too many requests of this kind wait",
        501: "this service has neither ONNX Runtime nor torch", 502: "the artifact URL cannot be read",
        503: "Redis is away, or the store of uploads",
        507: "no room for an upload",
    }.items()
}  # fmt: skip
DEFAULT_PROBLEM: Final[dict[str, object]] = {"model": Problem, "description": "refused for another reason"}
BODY_ERRORS: Final = (403, 408, 413, 415, 422)
STATUSES: Final[Mapping[type, int]] = {
    InvalidConfig: 422, DatasetError: 409, MissingPackage: 501, UnknownAlias: 404, AliasChanged: 409,
}  # fmt: skip
"""Failure -> status; any other failure is answered with 503, as it may pass."""


class ApiError(Exception):
    """A request that cannot be carried out."""

    def __init__(self, status: int, reason: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(reason=reason, field=field, message=message)


def as_api_error(error: PreflightError) -> ApiError:
    """Return a named failure as an answer."""
    status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 503)
    return ApiError(status, error.reason, error.message, error.field)


class RedisUnavailable(RedisError):
    """Redis does not answer; the message names no address."""


EMPTY: Final[dict[str, JsonValue]] = {"type": "object", "maxProperties": 0}
"""Schema of an empty body, for a request whose address says everything."""


def problems(*codes: int) -> dict[int | str, dict[str, object]]:
    """Return the OpenAPI responses for these statuses and those of every route."""
    return {**{code: PROBLEMS[code] for code in sorted({*codes, 400, 401, 421, 503})}, "default": DEFAULT_PROBLEM}


def request_body(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the OpenAPI request body with this schema."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def read_json(request: Request) -> JsonValue:
    """Return the JSON body of a request; raises `ApiError`."""
    _require_json_type(request)
    try:
        payload: JsonValue = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "malformed_json", f"the body is not JSON ({error}); send one object") from error
    return payload


def _require_json_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a page of another origin can send other types without a CORS preflight
        raise ApiError(415, "wrong_content_type", f"content-type is {ascii(kind)[:80]}, but must be 'application/json'")


def if_writable(*, read_only: bool, command: str = "preflight") -> list[params.Depends]:
    """Return the dependencies of a route that changes something; `command` does the same in a terminal."""

    async def require_writable() -> None:
        if read_only:
            message = f"this service changes nothing (PREFLIGHT_WEB_READONLY is on); use another, or `{command}`"
            raise ApiError(403, "read_only", message)

    return [Depends(require_writable)]


async def require_empty(request: Request, what: str) -> None:
    """Raise `ApiError` where the body of a `what` is neither empty nor {}; a form of another site has another type."""
    _require_json_type(request)
    if await request.body() and await read_json(request) != {}:
        raise ApiError(422, InvalidConfig.reason, f"the body of a {what} must be {{}}; send that")


def add_error_handlers(app: FastAPI, settings: Settings) -> None:
    """Answer every expected error with a `Problem`."""

    def handle(request: Request, error: Exception) -> JSONResponse:
        match error:
            case ApiError():
                return _response(error.problem, error.status, {"retry-after": "1"} if error.status == 429 else None)
            case PreflightError():
                return handle(request, as_api_error(error))
            case RequestValidationError():
                return _response(_parameter_problem(error), 422)
            case HTTPException():
                message = f"{error.detail}; /openapi.json lists the routes"
                headers = {"allow": _allowed_methods(request)} if error.status_code == 405 else error.headers
                return _response(Problem(reason="no_such_route", message=message), error.status_code, headers)
            case RedisError():
                is_public = isinstance(error, RedisUnavailable)
                message = str(error) if is_public else settings.redact(describe_error(error))
                headers = {"retry-after": str(RETRY_AFTER_SECONDS)}
                return _response(Problem(reason="redis_unreachable", message=message), 503, headers)
        raise error

    for kind in (ApiError, PreflightError, RequestValidationError, HTTPException, RedisError):
        app.add_exception_handler(kind, handle)


def _response(problem: Problem, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(problem.model_dump(), status, headers)


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes at the path of a request."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in route.methods or ()}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _parameter_problem(error: RequestValidationError) -> Problem:
    first = error.errors()[0]
    field = next((str(part) for part in first["loc"][1:]), "the request")
    value = ascii(first["input"])[:60]
    return Problem(reason=InvalidConfig.reason, field=field, message=f"{field} is {value}: {first['msg']}")
