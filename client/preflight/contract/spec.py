"""Spec of a training: the part of a job that alone decides the result.

The bounds below are the only ones in the project: the wire format and the command line use the same types.
They are guards against slips (a batch of 10^9), not advice; each is far beyond any sensible digit recognizer.
"""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from preflight.contract.removed import stored_without_removed
from preflight.errors import InvalidConfig

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""No coercion ("3" and true are not 3), no unknown fields, no NaN."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="a registered name")]
DatasetName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}(@[1-9][0-9]{0,5})?$",
        description="a registered name, or an imported data set: its newest version, or NAME@VERSION",
    ),
]
Epochs = Annotated[int, Field(ge=1, le=10_000, description="passes over the training samples")]
EpochSamples = Annotated[
    int,
    Field(
        ge=1, le=10_000_000,
        description="training samples in an epoch, fewer than a pass or several passes; null: each sample once",
    ),
]  # fmt: skip
TrainSamples = Annotated[
    int,
    Field(
        ge=1, le=10_000_000,
        description="training samples that are used, the same ones whatever the seed; null: all but those held out",
    ),
]  # fmt: skip
MaxSteps = Annotated[
    int,
    Field(
        ge=1, le=1_000_000_000,
        description="optimizer steps after which the training ends, within an epoch too; null: those of all epochs",
    ),
]  # fmt: skip
MAX_CLASSES: Final = 1_000
"""Most classes of a data set."""
MAX_BATCH: Final = 65_536
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH, description="samples per optimizer step (the effective batch)")]
LearningRate = Annotated[float, Field(gt=0, le=100, description="peak learning rate")]
Momentum = Annotated[float, Field(ge=0, lt=1, description="momentum of sgd and muon (Nesterov)")]
WeightDecay = Annotated[float, Field(ge=0, le=10, description="weight decay")]
Optimizer = Annotated[
    Literal["adamw", "sgd", "muon"], Field(description="update rule; muon takes hidden weights, AdamW the others")
]
Schedule = Annotated[
    Literal["one-cycle", "cosine", "step", "constant"], Field(description="course of the learning rate over the steps")
]
Warmup = Annotated[float, Field(ge=0, lt=1, description="share of the steps spent warming up (one-cycle)")]
StepEpochs = Annotated[int, Field(ge=1, le=10_000, description="epochs between two drops (step)")]
StepFactor = Annotated[float, Field(gt=0, le=1, description="factor of each drop (step)")]
LabelSmoothing = Annotated[float, Field(ge=0, lt=1, description="share of the target spread evenly")]
GradientClip = Annotated[float, Field(ge=0, le=1e6, description="largest gradient norm; 0 is no limit")]
ClassWeights = Annotated[
    Literal["none", "balanced"],
    Field(description="weight of each class in the loss; balanced: samples / (classes * samples of the class)"),
]
Sampler = Annotated[
    Literal["shuffle", "balanced"],
    Field(description="order of the samples; balanced draws each class equally often, rare samples several times"),
]
Metric = Annotated[
    Literal["accuracy", "macro_f1"], Field(description="validation figure that decides best epoch and patience")
]
Patience = Annotated[int, Field(ge=1, le=10_000, description="epochs without improvement before stopping")]
ValidationSamples = Annotated[
    int, Field(ge=0, le=10_000_000, description="training samples held out; null: 5,000 or a tenth")
]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1, description="seed of every random number")]

Probability = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Augmentation:
    """Random changes to training images, drawn for each sample in each epoch; all off by default."""

    rotate_degrees: Annotated[float, Field(ge=0, le=180)] = 0.0
    """Largest rotation either way, degrees."""
    translate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Largest shift either way along each axis, as a fraction of the image's side."""
    scale: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    """Largest change of size either way, as a share: 0.1 for 0.9 to 1.1 times as large."""
    noise_probability: Probability = 0.0
    """Share of pixels that become salt or pepper."""
    salt_vs_pepper: Probability = 0.5
    """Share of the noisy pixels that become white; the others become black."""
    dots_probability: Probability = 0.0
    """Share of images that get white dots."""
    dots_count: Annotated[int, Field(ge=1, le=64)] = 3
    """Dots on such an image."""
    dots_size: Annotated[int, Field(ge=1, le=64)] = 2
    """Side of a dot, pixels."""
    blur_sigma: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Largest standard deviation of a Gaussian blur, pixels; each image draws its own."""
    erode_probability: Probability = 0.0
    """Share of images whose strokes become thinner."""
    dilate_probability: Probability = 0.0
    """Share of images whose strokes become thicker; an image is never both eroded and dilated."""
    morphology_kernel: Literal[3, 5, 7] = 3
    """Side of the square that erosion and dilation look at, pixels."""
    random_resized_crop_scale: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Smallest share of the image's area that a part of it has which is enlarged to its size; 1 takes all of it."""
    random_resized_crop_ratio: Annotated[float, Field(ge=1, le=10)] = 4 / 3
    """Largest ratio of the longer to the shorter side of that part, in relation to the image's own."""
    random_crop_padding: Annotated[int, Field(ge=0, le=128)] = 0
    """Pixels of background around an image, from which a crop of its own size is taken."""
    random_horizontal_flip: Probability = 0.0
    """Share of images that are mirrored left to right."""
    random_vertical_flip: Probability = 0.0
    """Share of images that are turned upside down by a mirror."""
    brightness: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Largest change of brightness: 0.4 for factors from 0.6 to 1.4."""
    contrast: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Largest change of contrast, as that of brightness."""
    saturation: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Largest change of saturation, as that of brightness; of images in colour."""
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Largest turn of the hue either way, as a share of the circle of colours; of images in colour."""
    random_grayscale: Probability = 0.0
    """Share of images in colour that lose it."""

    def __post_init__(self) -> None:
        if self.erode_probability + self.dilate_probability > 1:
            raise ValueError("erode_probability and dilate_probability together must be at most 1")

    @property
    def active(self) -> bool:
        """Whether any image is changed at all."""
        return any(
            (self.rotate_degrees, self.translate, self.scale, self.noise_probability, self.dots_probability,
             self.blur_sigma, self.erode_probability, self.dilate_probability, self.random_resized_crop_scale < 1,
             self.random_crop_padding, self.random_horizontal_flip, self.random_vertical_flip, self.brightness,
             self.contrast, self.saturation, self.hue, self.random_grayscale)
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class TrainSpec:
    """What to train. Results depend on this alone, up to floating point; how it is run is the `Plan`.

    Defaults are those that bring `cnn` above 99 % on MNIST in one epoch.
    """

    dataset: DatasetName
    model: Name
    epochs: Epochs = 1
    epoch_samples: EpochSamples | None = None
    train_samples: TrainSamples | None = None
    max_steps: MaxSteps | None = None
    batch_size: BatchSize = 128
    optimizer: Optimizer = "adamw"
    learning_rate: LearningRate = 0.005
    momentum: Momentum = 0.9
    weight_decay: WeightDecay = 0.01
    schedule: Schedule = "one-cycle"
    warmup: Warmup = 0.2
    step_epochs: StepEpochs = 10
    step_factor: StepFactor = 0.1
    label_smoothing: LabelSmoothing = 0.0
    class_weights: ClassWeights = "none"
    sampler: Sampler = "shuffle"
    gradient_clip: GradientClip = 0.0
    patience: Patience | None = None
    metric: Metric = "accuracy"
    validation_samples: ValidationSamples | None = None
    seed: Seed = 0
    deterministic: bool = False
    augmentation: Augmentation = Augmentation()

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, fields: object) -> object:
        return stored_without_removed("job", fields)


DEFAULTS = TrainSpec(dataset="mnist", model="cnn")
"""Source of the defaults of the wire format and the command line."""


def check_sampling(spec: TrainSpec) -> None:
    """Check that `class_weights`, `sampler` and `metric` do not contradict one another or `validation_samples`.

    Raises:
        InvalidConfig: classes would be balanced twice, or no epoch would be scored by the metric.
    """
    if spec.class_weights == spec.sampler == "balanced":
        raise InvalidConfig(
            "class_weights and sampler are both 'balanced', which would make rare classes count twice as much as they "
            "should; leave out one of them",
            field="class_weights",
        )
    if spec.metric != "accuracy" and spec.validation_samples == 0:
        raise InvalidConfig(
            f"metric is {spec.metric!r}, but validation_samples is 0, so that no epoch is scored; hold samples out, or "
            "leave metric out",
            field="metric",
        )
