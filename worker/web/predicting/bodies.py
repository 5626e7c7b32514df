"""The pictures in the body of a request: one as it is, several as multipart or as base64 in JSON."""

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from worker.web.routes.errors import ApiError

MAX_PICTURES: Final = 1024
"""Most pictures of one request."""
MAX_COMMAS: Final = 2 * MAX_PICTURES
"""Most commas of a JSON body; base64 has none. Millions of small values would take 30 times their bytes in memory."""
BOUNDARY: Final = re.compile(r';\s*boundary\s*=\s*(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
"""The boundary in a content type; it has no quotes itself (RFC 2046, 5.1.1)."""
PICTURE: Final = re.compile(rb'filename|content-type|name="?images?(?:"|$|\r|;)', re.IGNORECASE)
"""In the head of a form's part that is a picture; others are fields, as a page adds them to a form."""
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
    kind = content_type.partition(";")[0].strip().lower()
    if kind in PICTURE_TYPES:
        return [body], True
    if kind == "application/json":
        pictures = _from_json(body)
    elif kind == "multipart/form-data":
        pictures = _from_multipart(content_type, body)
    else:
        raise ApiError(
            415, "wrong_content_type",
            f"content-type is {ascii(kind)[:80]}, but must be one of {', '.join(PICTURE_TYPES)}, application/json and "
            "multipart/form-data",
        )  # fmt: skip
    _require_number(len(pictures))
    return pictures, False


def _require_number(pictures: int) -> None:
    if not 1 <= pictures <= MAX_PICTURES:
        message = f"the body has {pictures:,} pictures, but may have 1 to {MAX_PICTURES:,}; send several requests"
        raise ApiError(422, "invalid_config", message, "images")


def _from_json(body: bytes) -> list[bytes]:
    commas = body.count(b",")
    if commas > MAX_COMMAS:
        _require_number(commas)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "malformed_json", f"the body is not JSON ({error}); send one object") from error
    images = found.get("images") if isinstance(found, dict) else None
    if not isinstance(images, list):
        raise ApiError(422, "invalid_config", "the body has no list `images`; send pictures in base64", "images")
    pictures = []
    for image in images:
        try:
            pictures.append(b64decode(image, validate=True))
        except (ValueError, TypeError) as error:
            shown = ascii(image[:40] if isinstance(image, str) else type(image).__name__)
            message = (
                f"images[{len(pictures)}] is {shown}, which is not base64 ({error}); send the bytes of a "
                "picture's file in the standard alphabet, without line breaks and without `data:` before it"
            )
            raise ApiError(422, "invalid_config", message, "images") from error
    return pictures


def _from_multipart(content_type: str, body: bytes) -> list[bytes]:
    """Return the pictures in the parts of a form (RFC 7578), in order."""
    found = BOUNDARY.search(content_type)
    if found is None:
        raise ApiError(422, "invalid_config", "content-type names no boundary of the parts; add it", "content-type")
    body, delimiter = b"\r\n" + body, b"\r\n--" + (found[1] or found[2]).encode("latin-1", errors="replace")
    if (pictures := body.count(delimiter) - 1) > MAX_PICTURES:  # without a list of them
        _require_number(pictures)
    parts = body.split(delimiter)
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise ApiError(422, "invalid_config", "the form ends before its last boundary; send it whole", "images")
    split = [part.partition(b"\r\n\r\n") for part in parts[1:-1]]
    return [content for head, _, content in split if PICTURE.search(head)]
