"""The training request: `TrainJob`, the `GroupSize` that it asks for and the user's `OwnPlan`."""

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    PrivateAttr,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from preflight.contract import plan, spec
from preflight.contract.lengths import check_lengths
from preflight.contract.recipes import FREE, RECIPES, TUNED, RecipeName, check_recipe, fine_tuning
from preflight.contract.removed import without_removed, without_removed_knobs
from preflight.contract.spec import DEFAULTS, Augmentation, TrainSpec, check_sampling
from preflight.errors import InvalidConfig
from preflight.wire.base import DIRECTORIES, MAX_WORKERS, JobId, Wire, is_job_id
from preflight.wire.validation_errors import NUMBER_TAG, OBJECT_TAG, to_invalid_config

INIT_PATTERN: Final = r"^[A-Za-z0-9._-]{1,64}(@[0-9a-f]{8,64})?$"
"""Pattern of a job id or an alias, with a hash or without."""

WorkerCount = Annotated[int, Field(ge=1, le=MAX_WORKERS)]

SPEC = TypeAdapter(TrainSpec)
SPEC_FIELDS: Final = frozenset(TrainSpec.__dataclass_fields__)


class GroupSize(Wire):
    """How many workers may train the job together, and how few."""

    model_config = ConfigDict(strict=True)

    min: WorkerCount
    """Fewest workers: with fewer the job goes back to its queue."""
    max: WorkerCount

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min may be at most max, {self.max}; lower min or raise max")
        return self


def _form(value: object) -> str:
    return OBJECT_TAG if isinstance(value, dict | GroupSize) else NUMBER_TAG


Workers = Annotated[
    Annotated[WorkerCount, Tag(NUMBER_TAG)] | Annotated[GroupSize, Tag(OBJECT_TAG)], Discriminator(_form)
]


if TYPE_CHECKING:
    _AnyPlan = Wire
else:
    _AnyPlan = create_model(
        "_AnyPlan", __base__=Wire, **{name: (type_ | None, None) for name, type_ in plan.TYPES.items()}
    )


class OwnPlan(_AnyPlan):
    """Parts of the plan that the user sets, fields of `Plan`; calibration measures them first."""

    model_config = ConfigDict(strict=True)

    if TYPE_CHECKING:

        def __init__(self, **fields: int | str | bool | None) -> None: ...

        def __getattr__(self, name: str) -> int | str | bool | None: ...

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, fields: object) -> object:
        return without_removed("plan", fields)

    def complete(self, train_spec: TrainSpec, cores: int) -> plan.Plan:
        """Return the plan with PyTorch's defaults on all cores for every unset field."""
        own = self.model_dump(exclude_none=True)
        try:
            return plan.Plan(**{"threads": cores, "micro_batch": train_spec.batch_size, **own})
        except ValidationError as error:
            raise to_invalid_config(error, OwnPlan.model_json_schema()) from error


def _add_rules(schema: dict[str, JsonValue]) -> None:
    """Add the rules between the fields of a job to its JSON schema."""
    rules: list[JsonValue] = []
    for name, recipe in RECIPES.items():
        values = SPEC.dump_python(recipe, mode="json", exclude={*FREE})
        fixed: dict[str, JsonValue] = {field: {"const": value} for field, value in values.items()}
        asked: dict[str, JsonValue] = {"recipe": {"const": name}}
        always: JsonValue = {field: value for field, value in fixed.items() if field not in TUNED}
        rules.append({"if": {"required": ["recipe"], "properties": asked}, "then": {"properties": always}})
        afresh: dict[str, JsonValue] = {**asked, "init_from": {"type": "null"}}
        alone: JsonValue = {field: value for field, value in fixed.items() if field in TUNED}
        rules.append({"if": {"required": ["recipe"], "properties": afresh}, "then": {"properties": alone}})
    schema["allOf"] = rules


class TrainJob(Wire):
    """A request to train. `type` and `dataset` are required; every other field has a default."""

    model_config = ConfigDict(strict=True, title="TrainJob", json_schema_extra=_add_rules)

    type: Literal["preflight.train.v1"]
    job_id: Annotated[JobId | None, Field(json_schema_extra={"not": {"enum": list(DIRECTORIES)}})] = None
    """Idempotency key; null: RQ's job id."""
    dataset: spec.DatasetName
    """mnist, fashion-mnist, kmnist, emnist, qmnist, digits, one that a package of yours registers, or imported data:
    its newest version when the first attempt starts, or NAME@VERSION."""
    recipe: RecipeName | None = None
    """Preset, by test accuracy on MNIST: fast 99.2 %, balanced 99.5 %, best 99.7 %; the fields that it fixes are left
    out, or equal to it."""
    init_from: Annotated[str, Field(pattern=INIT_PATTERN)] | None = None
    """Start from the weights of a trained model: an alias, `alias@hash`, or the id of a finished job. Its network must
    be the same; with another number of classes its last layer is drawn again. Epochs and learning rate have smaller
    defaults then, and may be given with a recipe."""
    model: spec.Name = DEFAULTS.model
    """cnn, resnet18, or one that a package of yours registers."""
    epochs: spec.Epochs = DEFAULTS.epochs
    epoch_samples: spec.EpochSamples | None = DEFAULTS.epoch_samples
    train_samples: spec.TrainSamples | None = DEFAULTS.train_samples
    max_steps: spec.MaxSteps | None = DEFAULTS.max_steps
    batch_size: spec.BatchSize = DEFAULTS.batch_size
    """Samples per optimizer step. For imported data with fewer than 2,048 samples to train on, the default is smaller:
    an epoch has 16 steps, or batches of 16."""
    optimizer: spec.Optimizer = DEFAULTS.optimizer
    learning_rate: spec.LearningRate = DEFAULTS.learning_rate
    momentum: spec.Momentum = DEFAULTS.momentum
    weight_decay: spec.WeightDecay = DEFAULTS.weight_decay
    schedule: spec.Schedule = DEFAULTS.schedule
    warmup: spec.Warmup = DEFAULTS.warmup
    step_epochs: spec.StepEpochs = DEFAULTS.step_epochs
    step_factor: spec.StepFactor = DEFAULTS.step_factor
    label_smoothing: spec.LabelSmoothing = DEFAULTS.label_smoothing
    class_weights: spec.ClassWeights = DEFAULTS.class_weights
    sampler: spec.Sampler = DEFAULTS.sampler
    gradient_clip: spec.GradientClip = DEFAULTS.gradient_clip
    patience: spec.Patience | None = DEFAULTS.patience
    metric: spec.Metric = DEFAULTS.metric
    validation_samples: spec.ValidationSamples | None = DEFAULTS.validation_samples
    seed: spec.Seed = DEFAULTS.seed
    augmentation: Augmentation = DEFAULTS.augmentation
    deterministic: bool = DEFAULTS.deterministic
    """Fix the plan for the whole job: runs with the same plan give bit-identical weights."""
    workers: Workers = 1
    """Workers that train the job together: an exact number, or from `min` to `max` of them."""
    calibrate: bool = True
    """Search for a faster plan than the user's own."""
    force_calibration: bool = False
    """Measure even where a plan is cached."""
    calibration_samples: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Steps measured of each plan; null: chosen by memory."""
    calibration_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Time budget of the calibration, seconds; null: the worker's setting."""
    calibration_knobs: Annotated[tuple[plan.KnobName, ...] | None, BeforeValidator(without_removed_knobs)] = None
    """Knobs that calibration may change; null: all."""
    profile: bool = False
    """Measure the phases of a step."""
    trace: bool = False
    """Save a trace of a few steps next to the model, for Perfetto or Chrome."""
    onnx: bool = False
    """Also save the model as `model.onnx`, compared with the PyTorch model on the whole test set."""
    plan: OwnPlan = OwnPlan()
    _asked: Self | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, fields: object) -> object:
        return without_removed("job", fields)

    @field_validator("job_id")
    @classmethod
    def _check_job_id(cls, value: str | None) -> str | None:
        if value is not None and not is_job_id(value):
            raise ValueError("a job id names a directory of its own; use a name")
        return value

    @field_validator("workers")
    @classmethod
    def _shorten_workers(cls, value: int | GroupSize) -> int | GroupSize:
        """Write equal bounds as one number: they ask for the same, and a job's digest says so."""
        return value.min if isinstance(value, GroupSize) and value.min == value.max else value

    @model_validator(mode="after")
    def _check_fields_together(self) -> Self:
        if self.recipe is not None:
            free = FREE if self.init_from is None else FREE | TUNED
            check_recipe(self.recipe, {name: getattr(self, name) for name in self._given}, free)
        spec = self.spec()
        check_lengths(spec)
        check_sampling(spec)
        if spec.deterministic and isinstance(self.workers, GroupSize):
            raise InvalidConfig(
                f"workers is {self.workers.min} to {self.workers.max}, but must be one number for a deterministic job, "
                "whose weights depend on it; set a number, or leave deterministic out",
                field="workers",
            )
        if self.plan.device == "cuda" and self.group.max > 1:
            raise InvalidConfig(
                f"workers is {self.group.max}, but must be 1 with plan.device 'cuda', as groups train on CPUs; "
                "set workers to 1, or leave plan.device out",
                field="workers",
            )
        return self

    @property
    def group(self) -> GroupSize:
        """How many workers may train the job; one number is both the least and the most."""
        return self.workers if isinstance(self.workers, GroupSize) else GroupSize(min=self.workers, max=self.workers)

    @property
    def _given(self) -> set[str]:
        return {*SPEC_FIELDS} & self.model_fields_set

    def settled(self, dataset: str, batch_size: int | None = None) -> Self:
        """Return the job with the version of its data set, and the default batch for its size.

        Its digest stays that of the request.
        """
        if dataset == self.dataset and batch_size in (None, self.spec().batch_size):
            return self
        update: dict[str, object] = {"dataset": dataset, **({} if batch_size is None else {"batch_size": batch_size})}
        found = self.model_copy(update=update)
        found._asked = self.as_asked()
        return found

    def as_asked(self) -> Self:
        """Return the job as it was enqueued."""
        return self if self._asked is None else self._asked

    def digest(self) -> str:
        """Return the SHA-256 of the request without its id: 64 hexadecimal digits."""
        request = self.as_asked().model_dump(mode="json", exclude={"job_id"}, exclude_defaults=True)
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()

    def spec(self) -> TrainSpec:
        """Return the training spec: given fields, the rest from the recipe or by default."""
        usual = DEFAULTS if self.recipe is None else RECIPES[self.recipe]
        rest = usual if self.init_from is None else fine_tuning(usual)
        given = self.model_dump(mode="json", include=self._given)
        return SPEC.validate_json(json.dumps({**SPEC.dump_python(rest, mode="json"), **given}))
