"""Imported data sets as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from preflight.cli.formatting.text import columns, printable
from preflight.numbers import plural
from training.catalog.version import Version

if TYPE_CHECKING:
    from worker.jobs.local.erasing import SampleUse

MAX_CLASSES: Final = 40
"""Classes that are listed; `--json` has all."""


def format_list(versions: Sequence[Version], aliases: Mapping[str, str]) -> str:
    """Return a line for each version, then one for each alias."""
    rows = [
        (
            version.reference, f"{version.samples:,}", str(len(version.classes)), "x".join(map(str, version.shape)),
            version.created_at[:19], version.sha256[:12], printable(version.source),
        )
        for version in versions
    ]  # fmt: skip
    head = ("DATASET", "SAMPLES", "CLASSES", "SHAPE", "IMPORTED", "SHA-256", "SOURCE")
    lines = [columns([head, *rows])] if rows else ["no data set was imported; `preflight data add NAME SOURCE` does it"]
    return "\n".join([*lines, *(f"{alias} stands for {reference}" for alias, reference in aliases.items())])


def format_version(version: Version) -> str:
    """Return what was imported, and what is wrong with it."""
    report, channels, height, width = version.report, *version.shape
    head = [
        ("data set", version.reference), ("source", f"{version.source} ({version.kind})"), ("sha256", version.sha256),
        ("pictures", f"{height}x{width}, {'gray' if channels == 1 else 'rgb'}"
                     f"{', inverted' if version.asked.get('inverted') is True else ''}"),
        ("samples", f"{version.samples:,} in {classes(len(version.classes))}"),
        ("found sizes", _sizes(report.get("sizes"))), ("found modes", _counts(report.get("modes"))),
    ]  # fmt: skip
    table = [("CLASS", "TRAIN", "VALIDATION", "TEST")]
    table += [
        (printable(each.name), f"{each.train:,}", f"{each.validation:,}", f"{each.test:,}")
        for each in version.classes[:MAX_CLASSES]
    ]
    total = [sum(getattr(each, side) for each in version.classes) for side in ("train", "validation", "test")]
    train, validation, test = (f"{count:,}" for count in total)
    table.append(("all", train, validation, test))
    more = len(version.classes) - MAX_CLASSES
    parts = ["\n".join(f"{name:12}  {printable(text)}" for name, text in head), columns(table)]
    if more > 0:
        parts.append(f"and {classes(more)} more; --json has all")
    parts += [block for block in (_refused(report), _duplicates(report), _warnings(report)) if block]
    return "\n\n".join(parts)


def format_difference(found: Mapping[str, JsonValue]) -> str:
    """Return what changed between two versions."""
    lines = [f"from {found['before']} to {found['after']}"]
    for name in ("added", "removed", "relabelled", "moved"):
        lines.append(f"{name:12}  {found[name]:,}")
    for name in ("classes_added", "classes_removed"):
        names = found[name]
        if isinstance(names, list) and names:
            lines.append(f"{name.replace('_', ' '):16}  {', '.join(printable(str(each)) for each in names)}")
    if found["same_form"] is False:
        lines.append("the pictures have another form, so that none of them is equal")
    return "\n".join(lines)


def format_use(use: SampleUse) -> str:
    """Return a sample, and what refers to it."""
    lines = [f"sample {use.sample} of {use.dataset}, {printable(use.label)}, {use.side}; in {', '.join(use.versions)}"]
    for names, count, what in (
        (use.active_jobs, use.active, "waiting or running on a version that has it; one that runs uses it to its end"),
        (use.trained_jobs, use.trained, "trained on a version that has it; the models keep what they have learned"),
        (use.aliases, len(use.aliases), "names of models that were trained on such a version"),
        (use.elsewhere, len(use.elsewhere), "versions of other data sets have the picture, and keep it"),
    ):  # fmt: skip
        if count is None:
            lines.append(f"  not known, as Redis does not answer: jobs {what}")
        elif count:
            lines.append(f"  {count:,} {what}: {', '.join(names)}{', ...' if count > len(names) else ''}")
    return "\n".join(lines)


def classes(count: int) -> str:
    """Return 1 class, 2 classes."""
    return f"{count:,} {'class' if count == 1 else 'classes'}"


def _sizes(sizes: JsonValue) -> str:
    found = sizes if isinstance(sizes, list) else []
    return ", ".join(
        f"{each['height']}x{each['width']} ({each['samples']:,})" for each in found[:5] if isinstance(each, dict)
    ) + (", ..." if len(found) > 5 else "")


def _counts(counts: JsonValue) -> str:
    found = counts if isinstance(counts, dict) else {}
    return ", ".join(f"{name} ({count:,})" for name, count in found.items())


def _refused(report: Mapping[str, JsonValue]) -> str:
    lines = []
    match report:
        case {"refused": {"samples": int(samples), "reasons": list(reasons)}} if samples:
            lines.append(f"{plural(samples, 'sample')} refused:")
            for each in reasons:
                match each:
                    case {"reason": str(reason), "count": int(count), "files": list(files)}:
                        named = ", ".join(printable(str(file)) for file in files)
                        lines.append(f"  {count:,}  {reason}: {named}{', ...' if count > len(files) else ''}")
    return "\n".join(lines)


def _duplicates(report: Mapping[str, JsonValue]) -> str:
    lines = []
    for kind, unit in (("exact", "samples"), ("near", "pairs")):
        match report.get(f"{kind}_duplicates"):
            case {"examples": list(examples), "across": int(across), **counts} if examples:
                lines.append(f"{kind} duplicates: {counts[unit]:,} {unit}, {across:,} across training and test")
                for pair in examples:
                    if isinstance(pair, list):
                        lines.append(f"  {' = '.join(printable(str(name)) for name in pair)}")
    return "\n".join(lines)


def _warnings(report: Mapping[str, JsonValue]) -> str:
    warnings = report.get("warnings")
    return "\n".join(f"warning: {each}" for each in warnings) if isinstance(warnings, list) else ""
