"""One optimizer step under a plan: the piece that training runs and calibration measures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.tuner.settings import set_malloc, trim_malloc
from training.artifacts.loading import InitialWeights
from training.group import ALONE, Group
from training.models.ensemble import ensemble_size
from training.models.factory import build
from training.models.weight_gradients import has_slow_weight_gradients, use_matrix_products
from training.optim.factory import optimizer, state_bytes
from training.optim.muon import Muon
from training.optim.schedule import learning_rate
from training.process.launch import pin
from training.step.device import Computing, Gpu, decide
from training.step.profiler import PhaseCallback, no_timer

BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


Make = Callable[[str, tuple[int, int, int], int], nn.Module]
"""Function that returns a fresh model for its name, an image shape (channels, height, width) and the classes."""


def _make_deterministic(wanted: bool, *, compiled: bool) -> None:
    if compiled:
        torch.use_deterministic_algorithms(wanted)  # sets the compiler, too, which it imports for that
    else:
        torch.set_deterministic_debug_mode("error" if wanted else "default")


def prepare_process(plan: Plan, *, frugal: bool = False) -> None:
    """Apply the settings of a plan for the whole process; call once, before the first parallel work.

    `frugal`: freed memory goes back to the kernel at once; a tuned malloc keeps it, and several times as much where
    small tensors come to lie in what large ones have left.
    """
    pin(plan)
    if not frugal:
        set_malloc(tuned=True)
    torch.set_num_threads(plan.threads)
    torch.set_num_interop_threads(plan.interop)


def find_gpu() -> Gpu | None:
    """Return the first GPU that torch can use."""
    if not torch.cuda.is_available():
        return None
    return Gpu(torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0))


def _prepare_gpu(computing: Computing) -> None:
    torch.backends.cudnn.benchmark = computing.benchmark
    if computing.memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(computing.memory_fraction)


class TrainStep:
    """A model and its optimizer, advanced one effective batch at a time."""

    def __init__(
        self, spec: TrainSpec, plan: Plan, shape: tuple[int, int, int], classes: int, make: Make | None = None
    ) -> None:
        """Build the model from the spec's seed, by `make` where it is not a registered one.

        Raises:
            InvalidConfig: the model does not suit the images, or there is no such device.
        """
        torch.manual_seed(spec.seed)
        _make_deterministic(spec.deterministic, compiled=plan.compile)
        self.spec = spec
        self.plan = plan
        self.classes = classes
        self.device = torch.device(plan.device)
        on_gpu = plan.device == "cuda"
        self.computing = decide(plan, find_gpu() if on_gpu else None, deterministic=spec.deterministic)
        if on_gpu:
            _prepare_gpu(self.computing)
        self.model = (make or build)(spec.model, shape, classes).to(self.device)
        if plan.memory_format == "channels_last":
            self.model.to(memory_format=torch.channels_last)
        if plan.weight_gradients == "products":
            use_matrix_products(self.model)
        self.group: Group = ALONE
        self.class_weights: Tensor | None = None
        """Factors of the loss of a sample of each class, float32 [classes]; None: 1."""
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if plan.compile else self.model.__call__
        self.best: dict[str, Tensor] = {}
        """The weights, buffers included, that `snapshot_best` kept; contiguous, on the CPU."""
        self.end_phase: PhaseCallback = no_timer
        """Called where a phase of a step ends."""
        self.origin: InitialWeights | None = None
        """The weights that the training started from, with which its result is averaged."""
        self._frozen: list[nn.Module] = []
        self._hits = torch.zeros((), dtype=torch.int64, device=self.device)
        self._dtype = DTYPES[self.computing.dtype]
        self._scaler = torch.amp.GradScaler(plan.device, enabled=self.computing.scaled)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(spec, [*self.model.parameters()], ensemble_size(self.model), self._dtype)

    @property
    def batch_statistics(self) -> bool:
        """Whether the model's result for a sample depends on the other samples of its micro-batch."""
        return any(isinstance(module, BATCH_NORMS) for module in self.model.modules())

    @property
    def slow_weight_gradients(self) -> bool:
        """Whether the model has convolutions whose weights' gradients may be quicker as matrix products."""
        return has_slow_weight_gradients(self.model)

    def join(self, group: Group) -> None:
        """Train as one rank of `group`, with its part of each effective batch."""
        self.group = group
        if isinstance(self.optimizer, Muon):
            self.optimizer.group = group
        forward = group.wrap(self.model)
        self.forward = torch.compile(forward) if self.plan.compile else forward

    def freeze_statistics(self) -> None:
        """Leave the running statistics of batch norms as they are, and normalize by them in training, too.

        A fine-tuning on few samples of one kind would replace them by that kind's: the model would forget the others.
        """
        self._frozen = [module for module in self.model.modules() if isinstance(module, BATCH_NORMS)]

    def apply_plan(self, plan: Plan) -> None:
        """Continue under `plan`, which may differ from the present one in threads and micro-batch.

        Raises:
            ValueError: it differs in a field that is fixed once a training runs.
        """
        if replace(plan, threads=self.plan.threads, micro_batch=self.plan.micro_batch) != self.plan:
            raise ValueError(f"{plan} changes more than threads and micro_batch of {self.plan}; use a new process")
        smaller = plan.micro_batch < self.plan.micro_batch
        self.plan = plan
        if plan.threads != torch.get_num_threads():
            torch.set_num_threads(plan.threads)
        if smaller:
            trim_malloc()

    def run(self, images: Tensor, labels: Tensor, rate: float) -> Tensor:
        """Train on one effective batch at learning rate `rate`; return its mean loss, a detached scalar.

        The batch goes through in micro-batches whose gradients add up to exactly that of the mean over the
        whole batch, an incomplete last one included, for a model without batch statistics.
        """
        self.model.train()
        for module in self._frozen:
            module.eval()
        loss = self.gradients(images, labels)
        if self.spec.gradient_clip > 0:
            self._scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.spec.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.end_phase("optimizer")
        return loss

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        """Set the gradients of an effective batch, of which a rank gets its part; return its mean loss, detached."""
        self.optimizer.zero_grad(set_to_none=True)
        if images.device != self.device:
            images, labels = images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            self.end_phase("transfer")
        total, correct = torch.zeros((), device=self.device), torch.zeros_like(self._hits)
        divisor, left = self.group.divisor(len(labels)), len(labels)
        micro = self.plan.micro_batch
        for some_images, some_labels in zip(torch.split(images, micro), torch.split(labels, micro), strict=True):
            left -= len(some_labels)
            with self.group.accumulate(last=left == 0):
                logits = self.logits(some_images)
                self.end_phase("forward")
                loss = (
                    F.cross_entropy(
                        logits,
                        some_labels,
                        weight=self.class_weights,
                        reduction="sum",
                        label_smoothing=self.spec.label_smoothing,
                    )
                    / divisor
                )
                total += loss.detach()
                correct += (logits.detach().argmax(1) == some_labels).sum()
                if left == 0:
                    whole = self.group.total(total, correct)  # on its way during the backward pass
                self.end_phase("loss")
                torch.autograd.backward(self._scaler.scale(loss))
                self.end_phase("backward")
        total, correct = whole()
        self._hits += correct
        return total

    def pop_correct(self) -> int:
        """Return how many training samples were recognized, each in its training step, since the last call."""
        hits = int(self._hits)
        self._hits.zero_()
        return hits

    def snapshot_best(self) -> None:
        """Keep the weights as they are now."""
        layout = torch.contiguous_format
        self.best = {
            name: value.to("cpu", copy=True, memory_format=layout) for name, value in self.model.state_dict().items()
        }

    def restore_best(self) -> None:
        """Put the kept weights back into the model at the end of its training; free what only a step needs."""
        self.model.load_state_dict(self.best)
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()

    def model_bytes(self) -> int:
        """Return the bytes of weights and buffers."""
        return sum(value.nbytes for value in self.model.state_dict().values())

    def checkpoint_bytes(self) -> int:
        """Return the bytes of all tensors that the rest of a training depends on."""
        return 2 * self.model_bytes() + state_bytes(self.spec, [*self.model.parameters()], ensemble_size(self.model))

    def logits(self, images: Tensor) -> Tensor:
        """Return float32 logits [B, classes] in the plan's precision of computation."""
        with torch.autocast(self.plan.device, dtype=self._dtype, enabled=self._dtype != torch.float32):
            return self.forward(images).float()

    def rate(self, step: int, steps: int, steps_per_epoch: int) -> float:
        """Return the learning rate of `step` (from 0) of `steps`."""
        return learning_rate(self.spec, step, steps, steps_per_epoch)
