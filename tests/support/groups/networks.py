"""Networks for tests: hosts with an address each, that can be parted and cut off.

A host is a network namespace of Linux on a bridge; a worker that is started with its `prefix` has that network and no
other. Redis is reached over its Unix socket whatever happens to the network, or over TCP at the bridge's address.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import pytest

TOOLS: Final = ("ip", "bridge", "nsenter")
SUBNET: Final = "10.213.{}"
"""The first two bytes of the addresses; the third is of the network."""


def run(*command: str) -> None:
    """Run a command of the system; raises `CalledProcessError` with its output."""
    subprocess.run(command, check=True, capture_output=True, text=True)


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a network."""

    name: str
    """Name of the namespace, and of the bridge's port to it."""
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words to put before a command that is to run there; /sys, with the cgroups, stays that of the machine."""
        return ("nsenter", f"--net=/run/netns/{self.name}", "--")

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a worker whose Redis is a Unix socket, which shows no address."""
        return {"PREFLIGHT_ADVERTISE_HOST": self.address}

    def run(self, *command: str) -> None:
        """Run a command there."""
        run(*self.prefix, *command)

    def cut(self) -> None:
        """Take the cable out."""
        run("ip", "link", "set", self.name, "down")

    def mend(self) -> None:
        """Put the cable in again."""
        run("ip", "link", "set", self.name, "up")

    def part(self, *, parted: bool = True) -> None:
        """Let it reach the bridge, but no other host that is parted."""
        run("bridge", "link", "set", "dev", self.name, "isolated", "on" if parted else "off")


@dataclass(slots=True)
class Network:
    """Hosts on a separate bridge."""

    bridge: str
    subnet: str
    hosts: list[Host] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Address of the bridge: this machine, as the hosts reach it."""
        return f"{self.subnet}.1"

    def add_host(self) -> Host:
        """Add a host."""
        number = len(self.hosts) + 2
        host = Host(f"{self.bridge}h{number}", f"{self.subnet}.{number}")
        run("ip", "netns", "add", host.name)
        self.hosts.append(host)
        run("ip", "link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        run("ip", "link", "set", host.name, "master", self.bridge, "up")
        for command in (
            ("ip", "link", "set", "lo", "up"),
            ("ip", "address", "add", f"{host.address}/24", "dev", "eth0"),
            ("ip", "link", "set", "eth0", "up"),
            ("ip", "route", "add", "default", "via", self.address),
        ):
            host.run(*command)
        return host

    def part(self, *, parted: bool = True) -> None:
        """Keep the hosts from each other, or let them reach each other again."""
        for host in self.hosts:
            host.part(parted=parted)

    def close(self) -> None:
        """Remove it with its hosts, whose processes have ended."""
        for host in self.hosts:
            with suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", host.name)
            with suppress(subprocess.CalledProcessError):  # it may have gone with its namespace
                run("ip", "link", "del", host.name)
        with suppress(subprocess.CalledProcessError):
            run("ip", "link", "del", self.bridge)


@contextmanager
def new_network() -> Iterator[Network]:
    """Make an empty network; skip the test where that is not possible."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"networks of the tests' own need root, ip, bridge and nsenter (missing: {missing or 'root'})")
    number = os.getpid() % 250
    network = Network(f"pf{os.getpid()}", SUBNET.format(number))
    try:
        run("ip", "link", "add", network.bridge, "type", "bridge")
        run("ip", "address", "add", f"{network.address}/24", "dev", network.bridge)
        run("ip", "link", "set", network.bridge, "up")
    except subprocess.CalledProcessError as error:
        network.close()
        pytest.skip(f"no network can be made here: {error.stderr.strip()[-200:]}")
    try:
        yield network
    finally:
        network.close()
