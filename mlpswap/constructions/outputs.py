"""What the closed-form constructions share: the output asked for each value, and each distinct key once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpswap.errors import ConfigError, NotDecodableError
from mlpswap.geometry import margin_optimal_outputs

OUTPUTS = ("auto", "values", "margin_optimal")
OUTPUTS_HELP = "row put out for a value: values | margin_optimal | auto: margin_optimal up to 2048 values"
AUTO_VALUES = 2048  # up to here margin-optimal outputs take seconds


@dataclass(frozen=True)
class Outputs:
    """The row (n_v, d) that an MLP is to put out for each value, float64, and which kind of row it is."""

    kind: str
    rows: Float[Tensor, "n_v d"]


def check_outputs(construction: str, outputs: str) -> None:
    """Raises `ConfigError` for a name that is not in `OUTPUTS`."""
    if outputs not in OUTPUTS:
        raise ConfigError(
            f"{construction}: unknown outputs '{outputs}': expected one of {', '.join(OUTPUTS)}"
        )


def output_rows(values: Float[Tensor, "n_v d"], mapping: Int[Tensor, " F"], outputs: str) -> Outputs:
    """The values themselves, or for each the unit vector that beats the others by the widest margin
    (arXiv 2512.00207, section 3).

    Raises `NotDecodableError` if a value that some key has cannot win at all. A value without a key may be such.
    """
    values = values.double()
    kind = outputs
    if outputs == "auto":
        kind = "margin_optimal" if len(values) <= AUTO_VALUES else "values"
    if kind == "values" or len(values) == 1:  # a single value has nobody to beat
        return Outputs(kind, values)
    rows = torch.zeros_like(values)
    keep = torch.ones(len(values), dtype=torch.bool, device=values.device)
    try:
        rows = margin_optimal_outputs(values).outputs
    except NotDecodableError as error:
        keep[list(error.indices)] = False
        if not keep[mapping].all():
            raise
        # Values inside the hull of the others never win: what beats the others beats them too.
        rows[keep] = margin_optimal_outputs(values[keep]).outputs
    return Outputs(kind, rows)


def distinct(keys: Float[Tensor, "F d"]) -> Int[Tensor, " n"]:
    """The index of each different key once, where it stands first."""
    _, group = torch.unique(keys, dim=0, return_inverse=True)
    rows = torch.arange(len(keys), device=keys.device)
    first = torch.full_like(rows, len(keys)).scatter_reduce(0, group, rows, reduce="amin")
    return first[first < len(keys)].sort().values
