"""What no construction can build on, refused at the door and named by row."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mlpswap.embeddings import check_floating, kind_of
from mlpswap.errors import ConfigError, DegenerateKeysError, InfeasibleConstructionError

SAME_LINE = 2e-7  # between unit keys: what float32 makes of a multiple, and too close for any read-out
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_tensors(keys: Tensor, values: Tensor, mapping: Tensor, competitors: Tensor | None = None) -> None:
    """Raise `ConfigError` unless rows are floating-point tensors and indices whole numbers, on one device."""
    for name, rows in (("keys", keys), ("values", values), ("competitors", competitors)):
        if rows is not None:
            check_floating(rows, name)
    if not isinstance(mapping, Tensor) or mapping.dtype not in _WHOLE:
        raise ConfigError(
            f"mapping must be a tensor of whole numbers, the row of its value for each key: found {kind_of(mapping)}"
        )
    for name, tensor in (("values", values), ("mapping", mapping), ("competitors", competitors)):
        if tensor is not None and tensor.device != keys.device:
            raise ConfigError(
                f"{name} must be on the device of the keys, {keys.device}: found {tensor.device}"
            )


def check_inputs(
    keys: Tensor,
    values: Tensor,
    mapping: Tensor,
    competitors: Tensor | None = None,
    *,
    homogeneous: bool = False,
) -> None:
    """Refuse what no construction can store, naming rows. Scale of the keys does not matter.

    homogeneous: the features of c k are those of k up to a factor, as bilinear ones are, so that keys on one
    line through the origin count as equal. Raises `DegenerateKeysError` for equal keys with different values
    and for keys whose length is zero or overflows, `InfeasibleConstructionError` for an empty set, for shapes
    that do not fit and for values that are all zero, `ConfigError` as `check_tensors`.
    """
    check_tensors(keys, values, mapping, competitors)
    if keys.ndim != 2 or values.ndim != 2 or keys.shape[1] != values.shape[1]:
        raise InfeasibleConstructionError(
            "keys (F, d) and values (n_v, d) must share d: "
            f"found {tuple(keys.shape)} and {tuple(values.shape)}"
        )
    if mapping.shape != keys.shape[:1] or len(keys) == 0:
        raise InfeasibleConstructionError(
            f"mapping needs one entry for each of {len(keys)} keys, one at least: "
            f"found shape {tuple(mapping.shape)}"
        )
    if mapping.min() < 0 or mapping.max() >= len(values):
        raise InfeasibleConstructionError(
            f"mapping points outside the {len(values)} values: {int(mapping.min())}..{int(mapping.max())}"
        )
    if competitors is not None and (competitors.ndim != 2 or competitors.shape[1] != keys.shape[1]):
        raise InfeasibleConstructionError(
            f"competitors must be (n_c, {keys.shape[1]}): found {tuple(competitors.shape)}"
        )
    for name, tensor in (("keys", keys), ("values", values), ("competitors", competitors)):
        if tensor is None:
            continue
        if rows := _where(~torch.isfinite(tensor).all(dim=1)):
            raise DegenerateKeysError(f"{name} hold NaN or infinity in rows {some(rows)}", rows)
        if rows := _where(tensor.double().norm(dim=1).isinf()):
            raise DegenerateKeysError(f"{name} are too long in rows {some(rows)}: their norm overflows", rows)
    if rows := _where(keys.double().norm(dim=1) == 0):
        raise DegenerateKeysError(f"keys {some(rows)} are zero", rows)
    if not values.any():
        raise InfeasibleConstructionError("all values are zero: every score is 0 whatever is stored")
    wanted = mapping.long()
    _, group = torch.unique(keys, dim=0, return_inverse=True)
    if rows := _contradictions(group, wanted):
        raise DegenerateKeysError(f"keys {some(rows)} are equal but their values differ", rows)
    if homogeneous and (rows := _contradictions(_lines(keys), wanted)):
        raise DegenerateKeysError(
            f"keys {some(rows)} are multiples of one another but their values differ: bilinear features cannot "
            "tell a key from its multiples, those of gd with kind=swiglu can",
            rows,
        )


def _contradictions(group: Tensor, mapping: Tensor) -> tuple[int, ...]:
    """Members of the groups that hold more than one value; `group` numbers each key's group from 0."""
    largest = torch.full_like(group, -1).scatter_reduce(0, group, mapping, reduce="amax")
    return _where(torch.isin(group, group[largest[group] != mapping]))


def _lines(keys: Tensor) -> Tensor:
    """For each key the number of its line through the origin.

    Keys on one line are neighbours in the order of their products with a fixed vector: F d, not F^2 d.
    """
    unit = keys.double() / keys.double().norm(dim=1, keepdim=True)
    unit *= unit.gather(1, unit.abs().argmax(dim=1, keepdim=True)).sign()  # k and -k have one direction
    irregular = torch.arange(1, unit.shape[1] + 1, device=unit.device, dtype=unit.dtype).sqrt()
    order = (unit * irregular.sin()).sum(dim=1).argsort()
    apart = (unit[order].diff(dim=0).norm(dim=1) > SAME_LINE).long()
    return torch.zeros_like(order).index_copy_(0, order[1:], apart.cumsum(0))


def _where(rows: Tensor) -> tuple[int, ...]:
    return tuple(rows.nonzero().flatten().tolist())


def some(rows: Sequence[int]) -> str:
    """The first eight indices, and how many more there are."""
    return ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
