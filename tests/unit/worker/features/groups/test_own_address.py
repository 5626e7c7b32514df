"""The address that a worker advertises."""

import socket

import pytest

from preflight.errors import InvalidConfig
from worker.config.settings import Settings
from worker.features.groups import address
from worker.features.groups.address import is_own, own_address


def test_the_address_is_that_of_the_way_to_redis() -> None:
    assert own_address(Settings(redis_url="redis://127.0.0.1:1/0")) == "127.0.0.1"
    assert own_address(Settings(redis_url="rediss://u:p@127.0.0.2/0")).startswith("127.")
    assert is_own(own_address(Settings(redis_url="unix:///run/redis.sock")))


def test_an_advertised_address_is_taken() -> None:
    assert own_address(Settings(advertise_host="127.0.0.2")) == "127.0.0.2"
    assert own_address(Settings(advertise_host="localhost")) in ("127.0.0.1", "::1")


@pytest.mark.skipif(not is_own("::1"), reason="this machine has no IPv6")
def test_it_may_be_of_ipv6() -> None:
    assert own_address(Settings(advertise_host="::1")) == "::1"
    assert own_address(Settings(redis_url="redis://[::1]:6379/0")) == "::1"


def test_an_address_of_another_machine_is_a_lie() -> None:
    """192.0.2.0/24 is for documentation (RFC 5737)."""
    with pytest.raises(InvalidConfig, match=r"192\.0\.2\.7, no address of this machine"):
        own_address(Settings(advertise_host="192.0.2.7"))


def test_of_a_name_that_all_replicas_share_the_own_address_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_resolve", lambda *_: ["192.0.2.7", "127.0.0.3", "127.0.0.1"])
    assert own_address(Settings(advertise_host="workers.internal")) == "127.0.0.3"


def test_an_unknown_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(InvalidConfig, match="no name server knows"):
        own_address(Settings(advertise_host="nowhere.invalid"))
