"""Signature: hardware, limits, software and workload that a measured plan depends on; the key of the plan cache."""

import hashlib
import json
import platform
from collections.abc import Collection
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from preflight.container.resources import Resources
from preflight.contract.plan import KNOBS, KnobName, Plan
from preflight.contract.registry import MODELS, find
from preflight.contract.spec import TrainSpec
from training.data.dataset_info import DatasetInfo
from training.data.split import split
from training.process.launch import find_tcmalloc

BFLOAT16: Final = ("avx512_bf16", "amx_bf16", "bf16", "svebf16")
"""Flags of /proc/cpuinfo for bfloat16 instructions, x86 and Arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Everything that makes a measurement here and now hold for the next job, and nothing else."""

    hardware: dict[str, JsonValue]
    limits: dict[str, JsonValue]
    software: dict[str, JsonValue]
    workload: dict[str, JsonValue]
    search: dict[str, JsonValue]
    """Plan that the search began with, and the knobs that it was allowed to turn."""

    @property
    def key(self) -> str:
        """Key of a finding."""
        return _digest(asdict(self))

    @property
    def trials_key(self) -> str:
        """Key of single measurements, which hold for any search."""
        return _digest({name: value for name, value in asdict(self).items() if name != "search"})

    @property
    def machine_key(self) -> str:
        """Key of the machine's own speed, which neither memory nor workload changes."""
        cpu = {name: value for name, value in self.limits.items() if name != "memory_bytes"}
        return _digest({"hardware": self.hardware, "limits": cpu, "torch": self.software.get("torch")})


def _digest(fields: dict[str, JsonValue]) -> str:
    """Return the first 128 bits of the SHA-256 of the canonical JSON, in hex."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def signature(
    spec: TrainSpec, baseline: Plan, resources: Resources, info: DatasetInfo, *,
    knobs: Collection[KnobName] = KNOBS, root: Path = Path("/"),
) -> Signature:  # fmt: skip
    """Return the signature of training `spec` on the data set `info` in a container with `resources`.

    `knobs` are those that the search may turn. Raises `InvalidConfig` where the spec does not suit the data set.
    """
    return Signature(
        hardware=_processor(root / "proc/cpuinfo"),
        limits={
            "cores": resources.cores,
            "quota": resources.quota,
            "affinity": len(resources.affinity),
            "memory_bytes": resources.memory_bytes,
        },
        software={
            "preflight": _version("preflight-worker"),
            "torch": _version("torch"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}",
            "model": _provider(spec.model),
            "tcmalloc": find_tcmalloc() is not None,
        },
        workload={
            "dataset": info.name,
            "shape": list(info.shape),
            "classes": info.classes,
            "train": info.train_count,
            "epoch_steps": split(spec, info).steps,
            "model": spec.model,
            "batch_size": spec.batch_size,
            "optimizer": spec.optimizer,
            "clips": spec.gradient_clip > 0,
            "validation_samples": spec.validation_samples,
            "deterministic": spec.deterministic,
            "augmentation": asdict(spec.augmentation),
        },
        search={"baseline": asdict(baseline), "knobs": [knob for knob in KNOBS if knob in knobs]},
    )


def processor_label(key: Signature) -> str:
    """Return the label of the processor: model name and digest of instruction sets."""
    return " ".join(str(key.hardware.get(fact, "")) for fact in ("model", "flags")).strip()


def _processor(cpuinfo: Path) -> dict[str, JsonValue]:
    """Return model name and a digest of the instruction-set flags of the first processor."""
    facts = _facts(cpuinfo)
    flags = " ".join(sorted(_flags(facts)))
    digest = hashlib.sha256(flags.encode()).hexdigest()[:16] if facts else ""
    return {"model": facts.get("model name", "") if facts else platform.processor(), "flags": digest}


def has_bfloat16(root: Path = Path("/")) -> bool:
    """Whether the processor has instructions for bfloat16; without them it is slower than float32."""
    return not _flags(_facts(root / "proc/cpuinfo")).isdisjoint(BFLOAT16)


def _facts(cpuinfo: Path) -> dict[str, str]:
    """Return the facts about the first processor; empty where nothing can be read."""
    try:
        lines = cpuinfo.read_text(errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _flags(facts: dict[str, str]) -> set[str]:
    return set(facts.get("flags", facts.get("Features", "")).split())


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def _provider(model: str) -> str:
    """Return name and version of the distribution that registers `model`."""
    entry = find(MODELS, model)
    return "" if entry is None or entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
