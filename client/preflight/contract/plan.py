"""How to run a spec in this container. A plan changes the speed, not the result.

`Plan` is the one table of what can be chosen: a field has its type, bounds and default, its words, and, where
calibration may change it, its knob. The wire format, the command line, the search, the explanation and the page take
fields and knobs from here.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_type_hints

from pydantic import BeforeValidator, Field, TypeAdapter, WithJsonSchema, model_validator
from pydantic.dataclasses import dataclass

from preflight.contract.knobs import Knob, Words
from preflight.contract.removed import stored_without_removed
from preflight.contract.spec import MAX_BATCH, STRICT


def _current_allocator(name: object) -> object:
    """Read `tuned` in jobs, events and checkpoints until 0.18 as `default`: every process is tuned since."""
    return "default" if name == "tuned" else name


Threads = Annotated[int, Field(ge=1, le=1024)]
MicroBatch = Annotated[int, Field(ge=1, le=MAX_BATCH, description="samples per forward and backward pass")]
EvalBatch = Annotated[int, Field(ge=1, le=MAX_BATCH, description="samples per forward pass of an evaluation")]
EVAL_BATCH: Final = 256
"""Default batch of an evaluation; larger ones are hardly faster and take more memory (docs/decisions.md)."""
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

    precision: Annotated[Precision, Words(always=True), Knob(needed=True)] = "float32"
    """Precision of forward and backward; weights and optimizer state stay float32."""
    memory_format: Annotated[MemoryFormat, Words(always=True), Knob(name="precision", needed=True)] = "contiguous"
    """Layout of images and convolution weights."""
    allocator: Annotated[
        Allocator, Words(texts={"default": "default malloc"}, always=True), Knob(needed=True, chance=0.3, gain=1.06)
    ] = "default"
    """`default` is the C library's, where glibc is tuned to keep large tensors in the heap; `tcmalloc` is another
    library's, loaded before the process starts."""
    threads: Annotated[Threads, Words(text="{} threads", texts={1: "1 thread"}, always=True), Knob(needed=True)]
    """Intra-operation threads of torch."""
    micro_batch: Annotated[MicroBatch, Words(text="micro-batch {}", always=True), Knob(needed=True, portable=False)]
    """Samples per forward and backward; an effective batch, or a worker's share, is made of as many as it takes."""
    loader_workers: Annotated[
        LoaderWorkers, Words(text="{} loader workers", texts={1: "1 loader worker"}), Knob(name="loader", needed=True)
    ] = 0
    """Processes that gather batches; 0 gathers them in the training process from memory-mapped data."""
    prefetch_factor: Annotated[
        PrefetchFactor | None,
        Words(text="prefetch {}", texts={None: "no prefetch"}),
        Knob(name="prefetch", portable=False),
    ] = None
    """Batches that each loader worker keeps ready; only with loader workers."""
    weight_gradients: Annotated[
        WeightGradients,
        Words(texts={"library": "weight gradients by the library", "products": "weight gradients as matrix products"}),
        Knob(chance=0.5),  # ResNet-18 in bfloat16 (calibration/search/mutations.py)
    ] = "library"
    """`products` computes those of convolutions with many channels as matrix products, and on images of a few pixels
    these convolutions themselves, too (training/models)."""
    eval_batch: Annotated[EvalBatch, Words(text="eval-batch {}"), Knob(chance=0.3, gain=1.1, portable=False)] = (
        EVAL_BATCH
    )
    """Samples per forward pass of an evaluation."""
    affinity: Annotated[Affinity, Words(), Knob()] = "free"
    """`pinned` keeps the process on as many processors as it has threads."""
    interop: Annotated[Threads, Words(text="{} interop threads", texts={1: "1 interop thread"}), Knob(chance=0.1)] = 1
    """Inter-operation threads; can be set only once in a process."""
    compile: Annotated[bool, Words(texts={True: "compiled", False: "not compiled"}), Knob()] = False
    """Whether the model goes through torch.compile."""
    device: Annotated[Device, Words(text="on {}")] = "cpu"
    """Device of the model. On `cuda` calibration measures nothing: it is for CPUs."""

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, fields: object) -> object:
        return stored_without_removed("plan", fields)

    def __post_init__(self) -> None:
        if self.prefetch_factor is not None and self.loader_workers == 0:
            raise ValueError("prefetch_factor needs loader_workers of at least 1")


PLAN: Final = TypeAdapter(Plan)
TYPES: Final[Mapping[str, object]] = get_type_hints(Plan, include_extras=True)
"""Field -> its type with bounds, words and knob."""
DEFAULTS: Final[Mapping[str, object]] = {one.name: one.default for one in fields(Plan) if one.default is not MISSING}
"""Field -> its default; none for a field without."""


def _beside(name: str, kind: type[Words] | type[Knob]) -> Words | Knob | None:
    return next((each for each in getattr(TYPES[name], "__metadata__", ()) if isinstance(each, kind)), None)


def words(name: str) -> Words:
    """Return the words of a field."""
    found = _beside(name, Words)
    return found if isinstance(found, Words) else Words()


def _knobs() -> Mapping[str, Mapping[str, Knob]]:
    found: dict[str, dict[str, Knob]] = {}
    for name in TYPES:
        if isinstance(knob := _beside(name, Knob), Knob):
            found.setdefault(knob.name or name, {})[name] = knob
    return found


PARTS: Final = _knobs()
"""Knob -> the fields that it changes."""
NEEDED: Final = tuple(knob for knob, parts in PARTS.items() if any(one.needed for one in parts.values()))
"""Knobs without which a search is incomplete."""
KNOBS: Final = tuple(dict.fromkeys(chain(NEEDED, PARTS)))
"""All knobs, the needed ones first; signatures of plan caches have them in this order."""
if TYPE_CHECKING:
    KnobName = str
else:
    KnobName = Literal[KNOBS]


def changed(plan: Plan, **values: object) -> Plan:
    """Return a plan with other values of fields that are named by the table; raises pydantic's `ValidationError`."""
    return PLAN.validate_python({**{name: getattr(plan, name) for name in TYPES}, **values}, strict=False)
