"""Model factory: a registered name becomes an `nn.Module`.

Models are registered under the entry-point group `preflight.models`, those of a user's package as well; networks of
recipes in a separate group, which is searched for a name that no model has. A registered function takes (image
shape, classes) and returns a fresh module, which maps float32 [B, C, H, W] to logits [B, classes].
"""

from torch import nn

from preflight.contract.registry import MODELS, load
from preflight.errors import InvalidConfig
from training.system.requirements import leave_out_onednn


def build(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a fresh model by its registered name, initialised from torch's global random state.

    Where no code may be generated, torch computes without oneDNN from here on.

    Raises:
        InvalidConfig: the name is unknown, it names no model factory, or the shape does not suit the model.
    """
    leave_out_onednn()
    factory = load(MODELS, "model", name)
    model = factory(shape, classes) if callable(factory) else None
    if not isinstance(model, nn.Module):
        raise InvalidConfig(
            f"model {name!r} is registered as {factory!r}, which does not return a torch.nn.Module", field="model"
        )
    return model
