"""Errors of stores and servers that another try does not change, each with a remedy.

Each library has its own exceptions: they are distinguished by the HTTP status somewhere in the chain of causes, by the
kind of error of the standard library at its end, and by words of their messages.
"""

import re
import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

MAX_CAUSES: Final = 20
CHECKSUMS: Final = re.compile(r"x-amz-(sdk-)?checksum|aws-chunked|x-amz-trailer|STREAMING-\w+-TRAILER", re.IGNORECASE)
"""Error text of a store that does not know the checksums which botocore sends since 1.36."""
NO_CHECKSUMS: Final = {
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required", "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
}  # fmt: skip
"""Variables of botocore that leave out the checksums that not every store knows; each file is read back anyway."""
HOST_REFUSED: Final = re.compile(r"invalid host header|dns rebinding", re.IGNORECASE)
UNTRUSTED: Final = re.compile(r"certificate verify failed|CERTIFICATE_VERIFY_FAILED", re.IGNORECASE)
NOT_TLS: Final = re.compile(r"wrong.version.number|record layer failure", re.IGNORECASE)
UNKNOWN_HOST: Final = re.compile(
    r"name or service not known|no address associated|nodename nor servname", re.IGNORECASE
)
PASSING: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
"""Statuses that may pass: the request was late or early, conflicted with another one, or was one of too many."""
REMEDIES: Final[dict[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "refuses the credentials; correct them in the variables that its client reads",
    HTTPStatus.FORBIDDEN: "refuses access; give these credentials the right to write there",
    HTTPStatus.NOT_FOUND: "has nothing at this address; correct the URL, or create the bucket or path",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "refuses a request as large as this; raise the limit of the server or of the "
    "proxy before it (nginx: client_max_body_size)",
}
"""Status -> predicate; every other of 400 to 499, and 501, is permanent, too."""


def explain_permanent(error: BaseException) -> str | None:
    """Return why another try would end in the same way, and what to do; None: it may pass."""
    chain = list(_causes(error))
    text = " ".join(str(each) for each in chain)
    status = next((found for each in chain if (found := _status(each)) is not None), None)
    if CHECKSUMS.search(text):
        settings = " and ".join(f"{name}={value}" for name, value in NO_CHECKSUMS.items())
        return f"the store knows no checksums of requests; set {settings}"
    if HOST_REFUSED.search(text):
        return (
            "MLflow refuses the host name of its URL (HTTP 403); start it with this name among its --allowed-hosts, or "
            "use one of those in PREFLIGHT_MLFLOW_URI"
        )
    if UNTRUSTED.search(text) or any(isinstance(each, ssl.SSLCertVerificationError) for each in chain):
        return (
            "its certificate is not trusted; name the authority's file in REQUESTS_CA_BUNDLE (MLflow) or AWS_CA_BUNDLE "
            "(S3)"
        )
    if NOT_TLS.search(text):
        return "it answers without TLS; write http:// instead of https://"
    if UNKNOWN_HOST.search(text) or any(_is_unknown_host(each) for each in chain):
        return "no name server knows its host; correct the URL"
    if status is None or status in PASSING or not _is_refusal(status):
        return None
    return f"the server {REMEDIES.get(status, 'refuses the request')} (HTTP {status})"


def _is_refusal(status: int) -> bool:
    return 400 <= status < 500 or status in (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from or during."""
    seen: list[BaseException] = []
    while error is not None and error not in seen and len(seen) < MAX_CAUSES:
        seen.append(error)
        yield error
        reason = getattr(error, "reason", None)  # urllib3's errors have it: requests wraps them without a cause
        error = error.__cause__ or error.__context__ or (reason if isinstance(reason, BaseException) else None)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status in an exception of botocore, requests, aiohttp, MLflow, Google or Azure; None: none."""
    match getattr(error, "response", None):
        case {"ResponseMetadata": {"HTTPStatusCode": int(status)}}:
            return status
        case response if isinstance(answered := getattr(response, "status_code", None), int):
            return answered
    if found := re.search(r"failed with error code (\d{3})\b", str(error)):  # MLflow's, for an answer that is no JSON
        return int(found[1])
    of_mlflow = getattr(error, "get_http_status_code", None)
    if callable(of_mlflow) and getattr(error, "error_code", None) not in (None, "INTERNAL_ERROR"):
        return int(of_mlflow())
    for name in ("status_code", "status", "code"):
        value = str(getattr(error, name, ""))
        if re.fullmatch(r"[45]\d\d", value, re.ASCII):
            return int(value)
    return None


def _is_unknown_host(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) and error.errno in (socket.EAI_NONAME, socket.EAI_NODATA)
