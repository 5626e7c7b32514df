"""The pictures in the body of a request: one as it is, several as multipart or as base64 in JSON."""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from worker.web.routes.errors import ApiError

MAX_PICTURES: Final = 1024
"""Most pictures of one request."""
PICTURE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "application/octet-stream")
BODY: Final[Mapping[str, JsonValue]] = {
    "requestBody": {
        "required": True,
        "content": {
            **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in PICTURE_TYPES},
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {
                            "type": "array", "minItems": 1, "maxItems": MAX_PICTURES,
                            "items": {"type": "string", "format": "byte"},
                        }
                    },
                }
            },
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {
                        "image": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
                    },
                }
            },
        },
    }
}  # fmt: skip


def read_pictures(content_type: str, body: bytes) -> tuple[list[bytes], bool]:
    """Return the pictures of a body, and whether it is a single one as it is.

    Raises:
        ApiError: the body is of another type, or has no or too many pictures.
    """
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind in PICTURE_TYPES:
        return [body], True
    if kind == "application/json":
        pictures = _from_json(body)
    elif kind == "multipart/form-data":
        pictures = _from_multipart(parameters, body)
    else:
        raise ApiError(
            415, "wrong_content_type",
            f"content-type is {ascii(kind)[:80]}, but must be one of {', '.join(PICTURE_TYPES)}, application/json and "
            "multipart/form-data",
        )  # fmt: skip
    if not 1 <= len(pictures) <= MAX_PICTURES:
        message = f"the body has {len(pictures):,} pictures, but may have 1 to {MAX_PICTURES:,}; send several requests"
        raise ApiError(422, "invalid_config", message, "images")
    return pictures, False


def _from_json(body: bytes) -> list[bytes]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "malformed_json", f"the body is not JSON ({error}); send one object") from error
    images = found.get("images") if isinstance(found, dict) else None
    if not isinstance(images, list):
        raise ApiError(422, "invalid_config", "the body has no list `images`; send pictures in base64", "images")
    try:
        return [b64decode(image, validate=True) for image in images]
    except (ValueError, TypeError) as error:
        raise ApiError(422, "invalid_config", f"a picture in images is not base64 ({error})", "images") from error


def _from_multipart(parameters: str, body: bytes) -> list[bytes]:
    """Return the contents of the parts of a form (RFC 7578), in order."""
    values = dict(part.strip().partition("=")[::2] for part in parameters.split(";"))
    boundary = values.get("boundary", "").strip('"').encode("latin-1", errors="replace")
    if not boundary:
        raise ApiError(422, "invalid_config", "content-type names no boundary of the parts; add it", "content-type")
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise ApiError(422, "invalid_config", "the form ends before its last boundary; send it whole", "images")
    return [part.partition(b"\r\n\r\n")[2] for part in parts[1:-1]]
