"""How to run a spec in this container. Another plan means another speed, not another lesson."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic.dataclasses import dataclass

from preflight.contract.removed import stored_without_removed
from preflight.contract.spec import MAX_BATCH, STRICT


def _current_allocator(name: object) -> object:
    """Read the `tuned` of jobs, events and checkpoints until 0.18, which every process is since."""
    return "default" if name == "tuned" else name


Threads = Annotated[int, Field(ge=1, le=1024)]
MicroBatch = Annotated[int, Field(ge=1, le=MAX_BATCH, description="samples per forward and backward pass")]
EvalBatch = Annotated[int, Field(ge=1, le=MAX_BATCH, description="samples per forward pass of an evaluation")]
EVAL_BATCH: Final = 256
"""More are hardly faster and take more memory (docs/decisions.md)."""
LoaderWorkers = Annotated[int, Field(ge=0, le=256)]
PrefetchFactor = Annotated[int, Field(ge=1, le=64)]
Precision = Literal["float32", "bfloat16"]
MemoryFormat = Literal["contiguous", "channels_last"]
Allocator = Annotated[
    Literal["default", "tcmalloc"],
    BeforeValidator(_current_allocator),
    WithJsonSchema({"enum": ["default", "tuned", "tcmalloc"], "type": "string"}),
]
Affinity = Literal["free", "pinned"]
WeightGradients = Literal["library", "products"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Plan:
    """How to run: chosen by calibration, or the user's own."""

    threads: Threads
    """Intra-operation threads of torch."""
    interop: Threads = 1
    """Inter-operation threads; can be set only once in a process."""
    micro_batch: MicroBatch
    """Samples per forward and backward; an effective batch, or a worker's share, is made of as many as it takes."""
    eval_batch: EvalBatch = EVAL_BATCH
    """Samples per forward pass of an evaluation."""
    loader_workers: LoaderWorkers = 0
    """Processes that gather batches; 0 gathers them in the training process from memory-mapped data."""
    prefetch_factor: PrefetchFactor | None = None
    """Batches that each loader worker keeps ready; only with loader workers."""
    precision: Precision = "float32"
    """Precision of forward and backward; weights and optimizer state stay float32."""
    memory_format: MemoryFormat = "contiguous"
    """Layout of images and convolution weights."""
    allocator: Allocator = "default"
    """`default` is the C library's, where glibc is tuned to keep large tensors in the heap; `tcmalloc` is another
    library's, loaded before the process starts."""
    affinity: Affinity = "free"
    """`pinned` keeps the process on as many processors as it has threads."""
    weight_gradients: WeightGradients = "library"
    """`products` computes those of convolutions with many channels as matrix products, and on images of a few pixels
    these convolutions themselves, too (training/models)."""
    compile: bool = False
    """Whether the model goes through torch.compile."""
    device: Device = "cpu"
    """Where the model is. On `cuda` calibration measures nothing: it is for CPUs."""

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, fields: object) -> object:
        return stored_without_removed("plan", fields)

    def __post_init__(self) -> None:
        if self.prefetch_factor is not None and self.loader_workers == 0:
            raise ValueError("prefetch_factor needs loader_workers of at least 1")
