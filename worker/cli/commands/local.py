"""Commands without a queue: train, demo, predict, export, upload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from preflight.cli.arguments import job_fields, parse_count
from preflight.cli.exit_codes import BAD_INPUT
from preflight.cli.options import JobCommand, job_options
from worker.cli.context import load_settings, log_to_stderr, parse_local_job, require_one_worker
from worker.cli.live import drawn

if TYPE_CHECKING:
    from preflight.wire import TrainResult

MAX_PROFILED: Final = 1_000_000
"""Most steps of a profile."""


@click.command(cls=JobCommand)
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def train(as_json: bool, **options: object) -> None:
    """Train without Redis. Calibration, training and model files are those of a queued job."""
    settings = load_settings()
    from worker.jobs.fork_server import started_server

    # The server imports torch meanwhile, and another one matplotlib later: a third import at once would delay torch's.
    with started_server(settings) as server:
        from worker.state.paths import has_attempts

        job = require_one_worker(
            parse_local_job(options, settings, lambda asked: has_attempts(settings, asked.job_id)), "train"
        )  # report a mistake before the slow imports
        from worker.cli.formatting.results import format_extras, format_result
        from worker.features.entries import FEATURES
        from worker.jobs.local.training import train_local

        results: list[TrainResult] = []
        with drawn(settings, as_json=as_json) as sink:
            # A result that is printed while the view is drawn would be lost with it.
            show = results.append if as_json or sink else lambda first: click.echo(format_result(first))
            result = train_local(job, settings, show, FEATURES, server, sink)
        if sink is not None:
            click.echo(format_result(results[0]))
    click.echo(result.model_dump_json() if as_json else format_extras(result))


@click.command(cls=JobCommand)
@job_options
@click.option("--steps", default="100", metavar="N", show_default=True, help="Steps to measure.")
@click.option("--warm-up", default="10", metavar="N", show_default=True, help="Steps before them, shown separately.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(steps: str, warm_up: str, as_json: bool, **options: object) -> None:
    """Measure where the time of a training step goes, without Redis.

    The steps are those of a training under the job's own plan (--set plan.threads=1), or, with --calibrate, under the
    one that calibration chooses. No model is saved.
    """
    settings = load_settings()
    job = require_one_worker(parse_local_job(options, settings), "profile")  # report a mistake before the slow imports
    counts = parse_count("steps", steps, MAX_PROFILED), parse_count("warm-up", warm_up, MAX_PROFILED)
    from worker.cli.formatting.profile import format_profile
    from worker.jobs.local.profile import profile_local

    with drawn(settings, as_json=as_json) as sink:
        found = profile_local(job, settings, steps=counts[0], warm_up=counts[1], sink=sink)
    click.echo(found.model_dump_json() if as_json else format_profile(found))


@click.command(cls=JobCommand)
@job_options
def demo(**options: object) -> None:
    """Run one job with a temporary Redis and worker."""
    settings, fields = load_settings(), job_fields(options)  # report a mistake before the slow imports
    from worker.cli.demo import run_demo

    raise SystemExit(run_demo(settings, fields))


@click.command()
@click.argument("model")
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with all probabilities.")
def predict(model: str, images: tuple[Path, ...], as_json: bool) -> None:
    """Classify images with a trained model.

    The model is that of a finished job, of an alias or alias@hash, a model directory, its model.safetensors, or an
    exported .onnx file. IMAGE is PNG or JPEG of any size, dark on light or light on dark; it is centered as MNIST's
    images are. For a model of images in colour it is scaled to fit.
    """
    from preflight.cli.formatting.text import printable
    from worker.jobs.local.predict import UnusableImage, predict_local
    from worker.models.references import find_path

    refused = False
    for answer in predict_local(find_path(load_settings(), model), images):
        if isinstance(answer, UnusableImage):
            refused = True
            click.echo(f"preflight: {printable(answer.why)}", err=True)
        elif as_json:
            click.echo(answer.model_dump_json())
        else:
            doubt = "uncertain  " if answer.uncertain else ""
            click.echo(f"{printable(answer.name):3}  {answer.confidence:6.1%}  {doubt}{printable(answer.image)}")
    raise SystemExit(BAD_INPUT if refused else 0)


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--onnx", "target", type=click.Path(path_type=Path), metavar="FILE", help="Default: next to the model.")
def export(artifact: Path, target: Path | None) -> None:
    """Export a model as ONNX and verify it.

    It is compared with the model on the whole test set.
    Input `images`: uint8 [N, C, H, W], 0 for background and 255 for ink. Output: `probabilities`.
    """
    from worker.jobs.local.onnx import export_local

    settings = load_settings()
    log_to_stderr(settings)
    click.echo(export_local(artifact, target, settings))


@click.command()
@click.argument("model", metavar="JOB|DIR")
def upload(model: str) -> None:
    """Upload a model. Targets: PREFLIGHT_ARTIFACT_URL, PREFLIGHT_MLFLOW_URI."""
    from worker.features.entries import FEATURES
    from worker.jobs.local.training import upload_local

    for where in upload_local(model, load_settings(), FEATURES):
        click.echo(where)
