"""Options that describe a job, and shell completion of their values."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from preflight.cli.completion import Kind

P = ParamSpec("P")
T = TypeVar("T")


class UncheckedPath(click.Path):
    """A path with shell completion; the command itself reports its errors, in one sentence."""

    def convert(
        self, value: str | os.PathLike[str], _param: click.Parameter | None, _ctx: click.Context | None
    ) -> str | os.PathLike[str]:
        """Return the path as it is."""
        return value


DATASET: Final = "mnist"
"""Data set of a command that names none."""
SHORT: Final = frozenset({"dataset", "recipe", "model", "epochs", "job_id", "workers"})
"""Options of a job that `--help` shows; `--help all` shows all."""
ALL: Final = "all"


class JobCommand(click.Command):
    """A command with the options of a job, whose `--help` fits a screen."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `all` after `--help` as a request for every option."""
        names = self.get_help_option_names(ctx)
        asked = next((at for at, one in enumerate(args[:-1]) if one in names), None)
        if asked is not None and args[asked + 1] == ALL:
            ctx.meta[ALL] = True
            args = [*args[: asked + 1], *args[asked + 2 :]]
        return super().parse_args(ctx, args)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature of click
        """Return the same names in any context: click keeps the option of the first one that asks."""
        return ["-h", "--help"]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say where the other options are."""
        if ALL not in ctx.meta:
            formatter.write(f"\n`{ctx.command_path} --help all` lists {len(self._hidden(ctx))} more options.\n")
        super().format_epilog(ctx, formatter)

    def _hidden(self, ctx: click.Context) -> list[click.Parameter]:
        return [one for one in self.get_params(ctx) if isinstance(one, FieldOption) and one.name not in SHORT]


class FieldOption(click.Option):
    """An option for a field of a job; its help has the type, bounds and default that the wire format has."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its help, None for one that is not shown; the models are imported only here."""
        from preflight.cli.formatting.fields import job_fields

        if self.name not in SHORT and ALL not in ctx.meta:
            return None
        record, field = super().get_help_record(ctx), job_fields()[str(self.name)]
        if record is None:
            return None
        names, text = record
        kind = field.kind.upper() if field.kind in ("integer", "number") else "NAME"
        limits = f"default: {DATASET}" if self.name == "dataset" else field.limits
        return names.replace(" TEXT", f" {kind}"), f"{text}  [{limits}]"


def print_fields(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """Print all fields of a job and exit."""
    if wanted and not context.resilient_parsing:
        from preflight.cli.formatting.fields import field_table

        click.echo(field_table())
        context.exit()


def completing(kind: Kind) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a completion callback for names of this kind."""

    def complete(_context: click.Context, _parameter: click.Parameter, word: str) -> list[str]:
        from preflight.cli.completion import names

        return names(kind, word)

    return complete


def job_options(function: Callable[P, T]) -> Callable[P, T]:
    """Add the options of a job; the wire format validates their values, so all errors read alike."""
    options = [
        click.option("--file", "file", type=UncheckedPath(), help="Read the job from JSON; '-': stdin."),
        click.option("--dataset", cls=FieldOption, shell_complete=completing("datasets"),
                     help="mnist, fashion-mnist, kmnist, emnist, qmnist, digits or your own."),
        click.option("--recipe", cls=FieldOption, shell_complete=completing("recipes"),
                     help="Preset, by test accuracy on MNIST: fast 99.2 %, balanced 99.5 %, best 99.7 %."),
        click.option("--model", cls=FieldOption, shell_complete=completing("models"),
                     help="cnn, resnet18 or your own."),
        click.option("--init-from", cls=FieldOption, help="Start from the weights of a job, an alias or ALIAS@HASH."),
        click.option("--epochs", cls=FieldOption, help="Passes over the training samples."),
        click.option("--epoch-samples", cls=FieldOption, help="Training samples in an epoch; null: each sample once."),
        click.option("--train-samples", cls=FieldOption, help="Training samples that are used; null: all."),
        click.option("--max-steps", cls=FieldOption, help="Optimizer steps after which the training ends."),
        click.option("--batch-size", cls=FieldOption, help="Samples per optimizer step."),
        click.option("--learning-rate", cls=FieldOption, help="Peak learning rate."),
        click.option("--class-weights", cls=FieldOption, help="Weigh the loss by class: none or balanced."),
        click.option("--sampler", cls=FieldOption, help="shuffle, or balanced: draw each class equally often."),
        click.option("--metric", cls=FieldOption, help="accuracy or macro_f1: decides best epoch and patience."),
        click.option("--seed", cls=FieldOption, help="Seed of every random number."),
        click.option("--job-id", cls=FieldOption, help="Idempotency key; generated by default."),
        click.option("--deterministic", cls=FieldOption, is_flag=True, default=None,
                     help="Fix the plan; weights are bit-identical."),
        click.option("--workers", cls=FieldOption, metavar="N|MIN-MAX",
                     help="Workers that train the job together: exactly N, or from MIN to MAX."),
        click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE",
                     help="Any other field, e.g. augmentation.rotate_degrees=10 or plan.threads=1."),
        click.option("--fields", is_flag=True, is_eager=True, expose_value=False, callback=print_fields,
                     help="List all fields with types, bounds and defaults, and exit."),
        click.option("--calibrate/--no-calibrate", cls=FieldOption, default=None,
                     help="Whether to look for a faster plan."),
        click.option("--force-calibration", cls=FieldOption, is_flag=True, default=None,
                     help="Measure even if a plan is cached."),
        click.option("--calibration-samples", cls=FieldOption, help="Steps to measure for each plan."),
        click.option("--calibration-seconds", cls=FieldOption, help="Time budget of the calibration."),
        click.option("--knobs", "calibration_knobs", cls=FieldOption, metavar="KNOB,...",
                     help="Knobs that calibration may change, e.g. threads,precision; null: all."),
        click.option("--profile", cls=FieldOption, is_flag=True, default=None,
                     help="Measure the time of each phase of a step."),
        click.option("--trace", cls=FieldOption, is_flag=True, default=None,
                     help="Save a trace of a few steps next to the model, for Perfetto or Chrome."),
        click.option("--onnx", cls=FieldOption, is_flag=True, default=None, help="Also save the model as ONNX."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function
