"""`preflight watch` in a pseudo terminal, with a Redis that is killed meanwhile."""

import subprocess
import sys

import pytest
from redis import Redis
from support.worker.job_events import done, event, progress, started
from support.worker.services import digits_job
from support.worker.terminals import StartTerminal

from preflight import Client, Silence
from preflight.events.state import publish
from preflight.redis import keys
from preflight.wire import AnyEvent
from tools.faults.machines import RedisServer
from worker.config.settings import Settings, service_environment

WATCH = [sys.executable, "-P", "-m", "worker.cli", "watch"]


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    return {**service_environment(settings), "TERM": "xterm-256color"}


def publish_all(server: RedisServer, *events: AnyEvent) -> None:
    connection = Redis.from_url(server.url)
    for one in events:
        publish(connection, one, ttl=600)


def test_watch_survives_an_outage_of_redis(
    server: RedisServer, environment: dict[str, str], start_terminal: StartTerminal, request: pytest.FixtureRequest
) -> None:
    """Live and as lines: both report the wait, continue with the next event, and exit with the job's code.

    The capped stream has dropped the first event; the live view has it from the lifecycle stream.
    """
    publish_all(server, started(1), progress(1, 10, seq=2))
    Redis.from_url(server.url).xtrim(keys.events("job"), maxlen=1, approximate=False)
    environment["PREFLIGHT_REDIS_URL"] = server.url
    screen = start_terminal(environment, *WATCH, "job")
    lines = subprocess.Popen(
        [*WATCH, "job"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "cnn on digits, 4 epochs" in screen.until("step 10/100")
    request.addfinalizer(lines.kill)
    assert lines.stdout is not None
    assert lines.stderr is not None
    before = lines.stdout.readline()
    server.kill()
    screen.until("waiting for Redis, which cannot be reached")
    assert lines.stderr.readline() == "waiting for Redis, which cannot be reached\n"
    server.start()
    publish_all(server, progress(1, 20, seq=3))
    assert "waiting for Redis" not in screen.until("step 20/100")
    publish_all(server, event("warning", seq=4, message="\x1b[2J[red]\u202e"), done(5))
    assert screen.end() == 0
    assert "test accuracy 98.76%" in screen.screen
    assert "\\x1b[2J[red]\\u202e" in screen.screen
    after, _ = lines.communicate(timeout=30)
    assert lines.returncode == 0
    assert [line.split()[0] for line in [before, *after.splitlines()]] == ["Epoch", "Epoch", "Warning:", "Finished"]
    assert "\x1b" not in after


@pytest.mark.slow  # tests/unit/preflight/cli/watch/test_live.py has what is drawn
@pytest.mark.usefixtures("signals_heard")
def test_a_training_without_redis_is_drawn_in_a_terminal(
    environment: dict[str, str], start_terminal: StartTerminal
) -> None:
    """As `watch` draws it; then what stays in the terminal, and the result. In a pipe there are records."""
    command = [*WATCH[:-1], "train", "--dataset", "digits", "--epochs", "2", "--no-calibrate"]
    screen = start_terminal(environment, *command, columns=120, rows=40)
    assert "cnn on digits, 2 epochs" in screen.until("cnn on digits")
    assert screen.end() == 0
    assert "finished" in screen.screen
    assert "model.safetensors" in screen.output
    assert '"event"' not in screen.output
    piped = subprocess.run([*command, "--max-steps", "1"], env=environment, capture_output=True, text=True, check=True)
    assert '"event": "training_done"' in piped.stderr


@pytest.mark.usefixtures("signals_heard")
def test_ctrl_c_stops_no_job(client: Client, environment: dict[str, str], start_terminal: StartTerminal) -> None:
    """In a small terminal: a message, exit code 130, the cursor restored, the job still queued."""
    client.enqueue(digits_job(job_id="first"))
    client.enqueue(digits_job(job_id="second"))
    screen = start_terminal({**environment, "NO_COLOR": "1"}, *WATCH, "second", columns=40, rows=20)
    screen.until("queued, 1 job ahead")
    screen.type("\x03")
    assert screen.end() == 130
    assert "second continues" in screen.screen
    assert screen.output.rindex("\x1b[?25h") > screen.output.rindex("\x1b[?25l")
    assert "\x1b[3" not in screen.output
    assert client.status("second").status == "queued"


def test_the_exit_code_is_the_jobs(client: Client, environment: dict[str, str], start_terminal: StartTerminal) -> None:
    client.enqueue(digits_job(job_id="unwanted"))
    client.cancel("unwanted")
    screen = start_terminal(environment, *WATCH, "unwanted", columns=200, rows=50)
    assert screen.end() == 3
    assert "cancelled in the queue" in screen.screen
    plain = start_terminal(environment, *WATCH, "unwanted", "--plain")
    assert plain.end() == 3
    assert plain.output == "Cancelled in the queue.\r\n"


def test_a_subscriber_receives_no_event_twice(server: RedisServer) -> None:
    """Also from a Redis that came back empty and received all events again."""
    events = [started(1), progress(1, 10, seq=2), progress(1, 20, seq=3)]
    publish_all(server, *events)
    client = Client(server.url)
    following = client.follow("job")
    assert [next(following) for _ in events] == events
    server.kill()
    server.empty()
    while not (isinstance(update := next(following), Silence) and update.redis_problem):
        pass
    server.start()
    publish_all(server, *events, progress(1, 30, seq=4), started(1, attempt=2), done(5))
    received = [update for update in following if not isinstance(update, Silence)]
    assert [(event.attempt, event.seq) for event in received] == [(1, 4), (2, 1), (1, 5)]
