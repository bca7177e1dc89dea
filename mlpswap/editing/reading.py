"""Read a model and leave it as it was; compute its changed tensors without writing them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mlpswap.editing.moments import exact
from mlpswap.errors import NonFiniteError

logger = logging.getLogger(__name__)

CAST_LOSS = 0.01  # share of a change that may get lost when the weight goes back to its dtype


def changed(name: str, parameter: Tensor, change: Tensor) -> Tensor:
    """parameter + change, in the parameter's dtype and on its device."""
    if not torch.isfinite(change).all():
        raise NonFiniteError(f"the change of {name} holds NaN or infinity: nothing was written")
    old, change = exact(parameter), exact(change)
    new = (old + change).to(parameter.dtype)
    lost = (new.double() - old - change).norm()
    if lost > CAST_LOSS * change.norm():
        share = float(lost / change.norm())
        logger.warning("%.0f %% of the change of %s got lost in %s", 100 * share, name, parameter.dtype)
    return new.to(parameter.device)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in the mode in which it was."""
    with _evaluation_mode(model), torch.no_grad():
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, in which no parameter asks for a gradient, so that one may be taken by something else."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        with _evaluation_mode(model):
            yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)
