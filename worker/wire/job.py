"""The training request: `TrainJob` and the user's `OwnPlan`."""

import hashlib
import json
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, field_validator, model_validator

from training.config import plan, spec
from training.config.lengths import check_lengths
from training.config.recipes import FREE, RECIPES, RecipeName, check_recipe
from training.config.spec import DEFAULTS, Augmentation, TrainSpec
from worker.wire.base import DIRECTORIES, JobId, Wire, is_job_id
from worker.wire.validation_errors import to_invalid_config

Knob = Literal[
    "allocator",
    "precision",
    "threads",
    "micro_batch",
    "eval_batch",
    "loader",
    "prefetch",
    "affinity",
    "interop",
    "weight_gradients",
    "compile",
]
"""Parts of a plan that calibration can change."""

SPEC = TypeAdapter(TrainSpec)
SPEC_FIELDS: Final = frozenset(TrainSpec.__dataclass_fields__)


class OwnPlan(Wire):
    """Parts of the plan that the user sets; calibration measures them first."""

    model_config = ConfigDict(strict=True)

    threads: plan.Threads | None = None
    interop: plan.Threads | None = None
    micro_batch: spec.BatchSize | None = None
    eval_batch: spec.BatchSize | None = None
    loader_workers: plan.LoaderWorkers | None = None
    prefetch_factor: plan.PrefetchFactor | None = None
    precision: plan.Precision | None = None
    memory_format: plan.MemoryFormat | None = None
    allocator: plan.Allocator | None = None
    affinity: plan.Affinity | None = None
    weight_gradients: plan.WeightGradients | None = None
    compile: bool | None = None
    device: plan.Device | None = None

    def complete(self, train_spec: TrainSpec, cores: int) -> plan.Plan:
        """Return the plan with PyTorch's defaults on all cores for every unset field."""
        own = self.model_dump(exclude_none=True)
        try:
            return plan.Plan(**{"threads": cores, "micro_batch": train_spec.batch_size, **own})
        except ValidationError as error:
            raise to_invalid_config(error, OwnPlan.model_json_schema()) from error


def _add_recipe_rules(schema: dict[str, JsonValue]) -> None:
    """Add the fields that each recipe fixes to the JSON schema of a job."""
    fixed = {name: SPEC.dump_python(recipe, mode="json", exclude={*FREE}) for name, recipe in RECIPES.items()}
    schema["allOf"] = [
        {
            "if": {"required": ["recipe"], "properties": {"recipe": {"const": name}}},
            "then": {"properties": {field: {"const": value} for field, value in fields.items()}},
        }
        for name, fields in fixed.items()
    ]


class TrainJob(Wire):
    """A request to train. `type` and `dataset` are required; every other field has a default."""

    model_config = ConfigDict(strict=True, title="TrainJob", json_schema_extra=_add_recipe_rules)

    type: Literal["preflight.train.v1"]
    job_id: Annotated[JobId | None, Field(json_schema_extra={"not": {"enum": list(DIRECTORIES)}})] = None
    """Idempotency key; null: RQ's job id."""
    dataset: spec.Name
    """mnist, fashion-mnist, kmnist, emnist, qmnist, digits, or one that a package of yours registers."""
    recipe: RecipeName | None = None
    """Named set of values; the fields that it fixes are left out, or equal to it."""
    model: spec.Name = DEFAULTS.model
    """cnn, resnet18, or one that a package of yours registers."""
    epochs: spec.Epochs = DEFAULTS.epochs
    epoch_samples: spec.EpochSamples | None = DEFAULTS.epoch_samples
    train_samples: spec.TrainSamples | None = DEFAULTS.train_samples
    max_steps: spec.MaxSteps | None = DEFAULTS.max_steps
    batch_size: spec.BatchSize = DEFAULTS.batch_size
    optimizer: spec.Optimizer = DEFAULTS.optimizer
    learning_rate: spec.LearningRate = DEFAULTS.learning_rate
    momentum: spec.Momentum = DEFAULTS.momentum
    weight_decay: spec.WeightDecay = DEFAULTS.weight_decay
    schedule: spec.Schedule = DEFAULTS.schedule
    warmup: spec.Warmup = DEFAULTS.warmup
    step_epochs: spec.StepEpochs = DEFAULTS.step_epochs
    step_factor: spec.StepFactor = DEFAULTS.step_factor
    label_smoothing: spec.LabelSmoothing = DEFAULTS.label_smoothing
    gradient_clip: spec.GradientClip = DEFAULTS.gradient_clip
    patience: spec.Patience | None = DEFAULTS.patience
    validation_samples: spec.ValidationSamples | None = DEFAULTS.validation_samples
    seed: spec.Seed = DEFAULTS.seed
    augmentation: Augmentation = DEFAULTS.augmentation
    deterministic: bool = DEFAULTS.deterministic
    """Fix the plan for the whole job: runs with the same plan give bit-identical weights."""
    calibrate: bool = True
    """Search for a faster plan than the user's own."""
    force_calibration: bool = False
    """Measure even where a plan is cached."""
    calibration_samples: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Steps measured of each plan; null: chosen by memory."""
    calibration_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Time budget of the calibration, seconds; null: the worker's setting."""
    calibration_knobs: tuple[Knob, ...] | None = None
    """Knobs that calibration may change; null: all."""
    profile: bool = False
    """Measure the phases of a step."""
    trace: bool = False
    """Save a trace of a few steps beside the model, for Perfetto or Chrome."""
    onnx: bool = False
    """Also save the model as `model.onnx`, compared with the PyTorch model on the whole test set."""
    plan: OwnPlan = OwnPlan()

    @field_validator("job_id")
    @classmethod
    def _check_job_id(cls, value: str | None) -> str | None:
        if value is not None and not is_job_id(value):
            raise ValueError("a job id names a directory of its own; use a name")
        return value

    @model_validator(mode="after")
    def _check_fields_together(self) -> Self:
        if self.recipe is not None:
            check_recipe(self.recipe, {name: getattr(self, name) for name in self._given})
        check_lengths(self.spec())
        return self

    @property
    def _given(self) -> set[str]:
        return {*SPEC_FIELDS} & self.model_fields_set

    def digest(self) -> str:
        """Return the SHA-256 of the request without its id: 64 hexadecimal digits."""
        request = self.model_dump(mode="json", exclude={"job_id"}, exclude_defaults=True)
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()

    def spec(self) -> TrainSpec:
        """Return the training spec: given fields, the rest from the recipe or by default."""
        rest = DEFAULTS if self.recipe is None else RECIPES[self.recipe]
        given = self.model_dump(mode="json", include=self._given)
        return SPEC.validate_json(json.dumps({**SPEC.dump_python(rest, mode="json"), **given}))
