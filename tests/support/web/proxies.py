"""nginx in front of a service, as people set it up: below a path, with Basic auth, buffering, over HTTP/1.0."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from support.web.service import Service
from support.worker.services import ROOT, wait_until
from tools.faults.machines import free_port

PLACE = """
location {path} {{
  proxy_pass http://127.0.0.1:{port}{upstream_path};
  {directives}
}}"""
WHOLE = """
daemon off; user root; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log notice;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; client_max_body_size 5m; {locations} }}
}}"""
USER, PASSWORD = "me", "secret"


def location(service: Service, path: str = "/", upstream_path: str = "", directives: str = "") -> str:
    """Return a location that leads to `service`; with an upstream path nginx replaces `path` by it."""
    return PLACE.format(path=path, port=service.port, upstream_path=upstream_path, directives=directives)


def basic_auth(folder: Path) -> str:
    """Return the directives that ask for a password."""
    users = folder / "users"
    users.write_text(f"{USER}:{{PLAIN}}{PASSWORD}\n")
    return f'auth_basic "tools"; auth_basic_user_file {users};'


@contextmanager
def nginx(folder: Path, *locations: str) -> Iterator[Service]:
    """Run nginx with these locations; yield a service by which it is asked. Skips where it is not installed."""
    program = shutil.which("nginx") or shutil.which(ROOT / "build" / "nginx")
    if program is None:
        pytest.skip("nginx is not installed (Debian: nginx)")
    front = Service({}, folder / "nginx.log", port=free_port())
    configuration = folder / "nginx.conf"
    configuration.write_text(WHOLE.format(folder=folder, port=front.port, locations="".join(locations)))
    with front.log.open("wb") as output:
        process = subprocess.Popen([program, "-c", configuration, "-p", folder, "-e", "stderr"], stdout=output,
                                   stderr=output, stdin=subprocess.DEVNULL)  # fmt: skip
    try:
        wait_until(lambda: _listens(front, process))
        yield front
    finally:
        process.terminate()
        process.wait(20)


def _listens(front: Service, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, front.log.read_text()
    with suppress(OSError), closing(front.connect()):
        return True
    return False
