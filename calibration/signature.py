"""What a measured plan depends on: hardware, limits, software and workload. The key of the plan cache."""

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from pydantic import JsonValue

from training.plan import Plan
from training.registry import MODELS
from training.resources import Resources
from training.spec import TrainSpec
from training.store import StoreInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Everything that makes a measurement here and now hold for the next job, and nothing else."""

    hardware: dict[str, JsonValue]
    limits: dict[str, JsonValue]
    software: dict[str, JsonValue]
    workload: dict[str, JsonValue]

    @property
    def key(self) -> str:
        """The first 128 bits of the SHA-256 of the canonical JSON, in hex."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def signature(
    spec: TrainSpec, baseline: Plan, resources: Resources, info: StoreInfo, *, root: Path = Path("/")
) -> Signature:
    """Return the signature of training `spec` on the data set `info` in a container with `resources`."""
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
        },
        workload={
            "dataset": info.name,
            "shape": list(info.shape),
            "classes": info.classes,
            "train": info.train_count,
            "model": spec.model,
            "batch_size": spec.batch_size,
            "optimizer": spec.optimizer,
            "clips": spec.gradient_clip > 0,
            "validation_samples": spec.validation_samples,
            "deterministic": spec.deterministic,
            "augmentation": asdict(spec.augmentation),
            "baseline": asdict(baseline),
        },
    )


def _processor(cpuinfo: Path) -> dict[str, JsonValue]:
    """Return model name and a digest of the instruction-set flags of the first processor."""
    try:
        lines = cpuinfo.read_text(errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        return {"model": platform.processor(), "flags": ""}
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = " ".join(sorted(facts.get("flags", facts.get("Features", "")).split()))
    return {"model": facts.get("model name", ""), "flags": hashlib.sha256(flags.encode()).hexdigest()[:16]}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def _provider(model: str) -> str:
    """Return name and version of the distribution that registers `model`."""
    for entry in entry_points(group=MODELS, name=model):
        if entry.dist is not None:
            return f"{entry.dist.name} {entry.dist.version}"
    return ""
