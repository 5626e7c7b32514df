"""Parameters of a Redis address: those of redis-py, ioredis, go-redis, Celery, RQ, Sidekiq, Lettuce and others, sorted.

Those about access and TLS are used. Those about waiting, pools, retries and names of keys are ignored, for these are
preflight's own. Any other is unknown, and may be a misspelt one.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

YES: Final = ("true", "1", "yes", "on", "")
NO: Final = ("false", "0", "no", "off")
CERT_REQS: Final[Mapping[str, str]] = {
    "none": "none", "cert_none": "none", "false": "none", "0": "none",
    "optional": "optional", "cert_optional": "optional", "1": "optional",
    "required": "required", "cert_required": "required", "true": "required", "2": "required",
}  # fmt: skip
"""Value of `ssl_cert_reqs` in small letters, by redis-py, Celery and Python -> redis-py's."""

Check = Callable[[str], str | None]
"""Returns a parameter's value for redis-py; None: it cannot be understood."""


def _whole(value: str) -> str | None:
    return value if re.fullmatch(r"\d{1,9}", value, re.ASCII) else None


def _boolean(value: str) -> str | None:
    low = value.lower()
    return "true" if low in YES else "false" if low in NO else None


def _cert_reqs(value: str) -> str | None:
    return CERT_REQS.get(value.lower().removeprefix("ssl."))


def _verify_peer(value: str) -> str | None:
    """Return `ssl_cert_reqs` for Lettuce's `verifyPeer`; names of hosts are always compared."""
    return {"none": "none", "ca": "required", "full": "required"}.get(value.lower())


def _skip_verify(value: str) -> str | None:
    given = _boolean(value)
    return given and ("none" if given == "true" else "required")


def _reject_unauthorized(value: str) -> str | None:
    given = _boolean(value)
    return given and ("required" if given == "true" else "none")


def _readable(value: str) -> str | None:
    return value if _why_unreadable(value) is None else None


def _why_unreadable(path: str) -> str | None:
    """Return why a file or a directory cannot be read; None: it can be."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        return getattr(error, "strerror", None) or str(error)
    return None


def _any(value: str) -> str | None:
    return value


def _family(value: str) -> str | None:
    return value if value.lower() in ("0", "4", "6", "ipv4", "ipv6") else None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that counts: its name in redis-py, its check, and the expected value in words."""

    name: str
    check: Check
    wanted: str

    @property
    def is_switch(self) -> bool:
        """Whether it is on where it has no value."""
        return self.check(YES[-1]) is not None and self.check is not _any

    def explain(self, value: str) -> str:
        """Return the clause on a value that `check` has refused."""
        if self.check is _readable:
            return f"which cannot be read ({_why_unreadable(value)}); correct the path"
        return f"but it must be {self.wanted}"


def _file(name: str) -> Parameter:
    return Parameter(name, _readable, "a path that this user can read")


DATABASE: Final = Parameter("db", _whole, "a whole number")
TLS: Final = Parameter("tls", _boolean, "true or false")
CERTIFICATE: Final = Parameter("ssl_cert_reqs", _cert_reqs, "none, optional or required")
REJECT: Final = Parameter("ssl_cert_reqs", _reject_unauthorized, "true or false")
FAMILY: Final = Parameter("", _family, "0, 4 or 6")

USED: Final[Mapping[str, Parameter]] = {
    "db": DATABASE, "database": DATABASE, "virtual_host": DATABASE, "dbindex": DATABASE,
    "username": Parameter("username", _any, "text"),
    "password": Parameter("password", _any, "text"),
    "tls": TLS, "ssl": TLS, "use_tls": TLS, "usetls": TLS, "use_ssl": TLS,
    "family": FAMILY,  # every address of a host is tried
    "ssl_cert_reqs": CERTIFICATE,
    "skip_verify": Parameter("ssl_cert_reqs", _skip_verify, "true or false"),
    "rejectunauthorized": REJECT, "tls.rejectunauthorized": REJECT, "tls[rejectunauthorized]": REJECT,
    "verifypeer": Parameter("ssl_cert_reqs", _verify_peer, "NONE, CA or FULL"),
    "ssl_check_hostname": Parameter("ssl_check_hostname", _boolean, "true or false"),
    "ssl_ca_certs": _file("ssl_ca_certs"), "ssl_ca_path": _file("ssl_ca_path"), "ssl_certfile": _file("ssl_certfile"),
    "ssl_keyfile": _file("ssl_keyfile"),
    "ssl_ca_data": Parameter("ssl_ca_data", _any, "text"),
    "ssl_ciphers": Parameter("ssl_ciphers", _any, "text"),
    "ssl_password": Parameter("ssl_password", _any, "text"),
}  # fmt: skip
"""Name in an address, in small letters -> parameter for redis-py."""

IGNORED_NAMES: Final = (
    # redis-py, RQ and Celery
    "socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "socket_type",
    "socket_read_size", "retry_on_timeout", "retry_on_error", "retry", "max_connections", "health_check_interval",
    "timeout", "client_name", "lib_name", "lib_version", "protocol", "decode_responses", "encoding",
    "encoding_errors", "legacy_responses", "single_connection_client", "visibility_timeout", "global_keyprefix",
    "polling_interval", "queue_order_strategy", "redis_max_connections", "redis_backend_health_check_interval",
    "retry_policy", "max_retries", "fanout_prefix", "fanout_patterns", "sep", "key_prefix", "cluster",
    # ioredis and node-redis
    "connect_timeout", "command_timeout", "keep_alive", "no_delay", "connection_name", "max_retries_per_request",
    "enable_ready_check", "enable_offline_queue", "enable_auto_pipelining", "lazy_connect", "auto_resubscribe",
    "auto_resend_unfulfilled_commands", "read_only", "show_friendly_error_stack", "string_numbers",
    "allow_username_in_uri", "ping_interval", "max_loading_retry_time", "disconnect_timeout",
    "commands_queue_max_length", "disable_client_info", "client_info_tag", "resp",
    # go-redis and what builds on it
    "dial_timeout", "read_timeout", "write_timeout", "pool_size", "pool_timeout", "pool_fifo", "min_idle_conns",
    "max_idle_conns", "max_active_conns", "conn_max_idle_time", "conn_max_lifetime", "conn_max_lifetime_jitter",
    "idle_timeout", "idle_check_frequency", "max_conn_age", "min_retry_backoff", "max_retry_backoff",
    "context_timeout_enabled", "disable_identity", "disable_indentity", "identity_suffix", "dialer_retries",
    "dialer_retry_timeout", "failing_timeout_seconds", "unstable_resp3", "max_redirects", "max_concurrent_dials",
    "read_buffer_size", "write_buffer_size",
    # Sidekiq and redis-client (Ruby), Lettuce and Jedis (Java), predis and Symfony (PHP), aioredis
    "reconnect_attempts", "reconnect_delay", "reconnect_delay_max", "driver", "inherit_socket", "namespace", "size",
    "network_timeout", "pool_name", "id", "library_name", "library_version", "read_write_timeout", "persistent",
    "persistent_id", "retry_interval", "lazy", "tcp_keepalive", "tcp_nodelay", "async_connect", "alias", "prefix",
    "minsize", "maxsize", "create_connection_timeout", "max_idle", "max_active", "min_idle", "max_wait",
    "auto_pipeline", "upgrade",
)  # fmt: skip
"""Parameters of other clients without an effect here, in snake case."""
IGNORED: Final = frozenset(name.replace("_", "") for name in IGNORED_NAMES)


def is_ignored(label: str) -> bool:
    """Whether a parameter has no effect, written in snake case, camel case or with hyphens."""
    return label.lower().replace("_", "").replace("-", "") in IGNORED
