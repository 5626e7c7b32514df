"""Uploads: the body of a request becomes a file, block by block, within bounds; its content is not examined here."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeVar

import structlog
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from preflight.errors import PreflightError
from worker.config.settings import Settings
from worker.imports.uploads import Upload, Uploads, bytes_of, open_uploads
from worker.web.routes.errors import ApiError

GIB: Final = 1 << 30
BLOCK: Final = 1 << 20
"""Bytes that are written at a time."""
MAX_UPLOADS: Final = 4
"""Most uploads that are received at a time."""
MAX_SECONDS: Final = 6 * 3600.0
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORM_TYPES: Final = ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded")
"""Content types that a page of another origin can send without a CORS preflight."""
T = TypeVar("T")


class Uploader:
    """Writes uploads, a few at a time, while all uploads and imported data together are within their bound."""

    def __init__(self, settings: Settings, imported: Callable[[], int]) -> None:
        """Limit uploads, and together with them the data, whose bytes `imported` returns, as the settings say."""
        self._settings, self._imported = settings, imported
        self.most, self.each = round(settings.imports_gb * GIB), round(settings.max_upload_gb * GIB)
        self._coming = 0
        """Most bytes that the uploads which are being received may have; those that are written count twice."""
        self._running = 0

    def used(self) -> int:
        """Return the bytes of uploads and imported data."""
        return bytes_of(self._uploads()) + self._imported()

    async def receive(self, request: Request, name: str) -> int:
        """Write the body of a request as the file `name`; returns its bytes.

        Raises:
            ApiError: it was refused, or did not come whole; nothing is left of it.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in FORM_TYPES or not kind:
            message = f"content-type is {ascii(kind)[:80]}; send the file itself, as application/octet-stream"
            raise ApiError(415, "wrong_content_type", message)
        length = request.headers.get("content-length")
        declared = int(length or 0)
        coming = self.each if length is None else declared  # a chunked body declares nothing, and may be of any size
        with self._slot(coming):
            others = self._coming - coming
            room = self.most - others - await _guarded(self.used)
            if declared >= room:
                raise self._over(declared, room)
            upload = await _guarded(lambda: self._uploads().create(name))
            try:
                size = await self._write(request, upload, room)
                if size == 0:
                    raise ApiError(422, "empty", "the body is empty; send the file", "body")
                await _guarded(upload.commit)
            except BaseException:
                await asyncio.shield(run_in_threadpool(upload.abort))
                raise
        return size

    async def store(self, name: str, content: bytes) -> None:
        """Write a small file; raises `ApiError`."""
        if len(content) > self.most - await _guarded(self.used):
            raise self._over(len(content), 0)
        upload = await _guarded(lambda: self._uploads().create(name))
        try:
            await _guarded(lambda: upload.write(content))
            await _guarded(upload.commit)
        except BaseException:
            await asyncio.shield(run_in_threadpool(upload.abort))
            raise

    async def discard(self, name: str) -> None:
        """Remove a file for which no import was opened."""
        await run_in_threadpool(self.remove, name)

    def remove(self, name: str) -> None:
        """Remove an upload, as far as the store answers; workers remove what is left."""
        with suppress(Exception):
            if name:
                self._uploads().remove(name)

    async def _write(self, request: Request, upload: Upload, room: int) -> int:
        size, deadline = 0, time.monotonic() + MAX_SECONDS
        async for block in _blocks(request):
            size += len(block)
            if size > min(room, self.each):
                raise self._over(size, room)
            if time.monotonic() > deadline:
                raise ApiError(408, "too_slow", f"the upload took more than {MAX_SECONDS / 3600:g} h; send it faster")
            await _guarded(partial(upload.write, block))
        return size

    def _over(self, size: int, room: int) -> ApiError:
        if size > self.each:
            message = f"the upload has more than {self.each / GIB:g} GiB, which PREFLIGHT_MAX_UPLOAD_GB sets"
            return ApiError(413, "too_large", f"{message}; send it in parts, or import it by `preflight data add`")
        return ApiError(
            507, "store_full",
            f"{max(0, room) >> 20:,} MiB are left of the {self.most / GIB:g} GiB for uploads and imported data "
            "(PREFLIGHT_IMPORTS_GB); delete a data set, or wait for the end of other uploads",
        )  # fmt: skip

    def _uploads(self) -> Uploads:
        try:
            return open_uploads(self._settings)
        except PreflightError as error:
            raise ApiError(503, error.reason, error.message, error.field) from error

    @contextmanager
    def _slot(self, coming: int) -> Iterator[None]:
        if self._running >= MAX_UPLOADS:
            raise ApiError(429, "too_busy", f"{MAX_UPLOADS} uploads are being received already; send it again later")
        self._running += 1
        self._coming += coming
        try:
            yield
        finally:
            self._running -= 1
            self._coming -= coming


async def _blocks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body in blocks; raises `ApiError` where the client leaves before its end."""
    held = bytearray()
    try:
        async for chunk in request.stream():
            held += chunk
            if len(held) >= BLOCK:
                yield bytes(held)
                held.clear()
    except ClientDisconnect as error:
        raise ApiError(400, "incomplete", "the upload did not come whole; send it again") from error
    if held:
        yield bytes(held)


async def _guarded(action: Callable[[], T]) -> T:
    """Return the result of `action` in a thread; raises errors of a disk or a store as `ApiError`."""
    try:
        return await run_in_threadpool(action)
    except ApiError:
        raise
    except OSError as error:
        if error.errno in FULL:
            message = "there is no room for the upload; delete a data set, or give the volume more"
            raise ApiError(507, "store_full", message) from error
        structlog.get_logger("preflight").error("upload_failed", message=str(error))
        message = (
            f"uploads cannot be written ({error.strerror or 'the store does not answer'}); see PREFLIGHT_UPLOAD_DIR"
        )
        raise ApiError(503, "uploads_unavailable", message) from error
    except Exception as error:  # clients of stores have their own errors
        structlog.get_logger("preflight").error("upload_failed", message=str(error))
        raise ApiError(503, "uploads_unavailable", "the store of uploads does not answer; try again later") from error
