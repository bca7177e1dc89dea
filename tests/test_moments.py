"""Second moments and symmetric solves."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mlpswap.editing import SecondMoment, SymmetricFactor
from mlpswap.errors import CheckpointError, ConfigError, NonFiniteError, SingularMomentError
from mlpswap.model.saving import tensor_sha256
from mlpswap.randomness import generator


@pytest.fixture
def keys():
    return torch.randn(50, 6, generator=generator(0, "keys"), dtype=torch.float64)


def test_the_sum_is_that_of_numpy_however_the_keys_come(keys):
    """One tensor, small chunks, a stream of batches, or two moments added: the same float64 sums."""
    wanted = torch.from_numpy(np.einsum("ni,nj->ij", keys.numpy(), keys.numpy()))
    stream = (keys[start : start + 7] for start in range(0, 50, 7))
    for moment in (
        SecondMoment.from_keys(keys),
        SecondMoment.from_keys(keys, chunk=8),
        SecondMoment.from_keys(stream),
        SecondMoment.from_keys(keys[:20]) + SecondMoment.from_keys(keys[20:]),
    ):
        assert moment.count == 50
        torch.testing.assert_close(moment.sum, wanted, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(moment.mean, wanted / 50)


def test_float32_keys_are_summed_in_float64(keys):
    """Sums of thousands of float32 outer products lose definiteness."""
    single = keys.float()
    moment = SecondMoment.from_keys(single)
    assert moment.sum.dtype == torch.float64
    torch.testing.assert_close(moment.sum, single.double().T @ single.double(), rtol=1e-14, atol=1e-14)


def test_save_and_load(keys, tmp_path):
    path = tmp_path / "moment.safetensors"
    moment = SecondMoment.from_keys(keys)
    moment.save(path)
    loaded = SecondMoment.load(path)
    assert torch.equal(loaded.sum, moment.sum)
    assert loaded.count == 50


def test_damaged_files_are_refused(keys, tmp_path):
    path = tmp_path / "moment.safetensors"
    SecondMoment.from_keys(keys).save(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="moment.safetensors"):
        SecondMoment.load(path)
    square = torch.eye(2, dtype=torch.float64)
    about = {"count": "1", "sha256": tensor_sha256(square)}
    for tensor, metadata, message in (
        (torch.zeros(2, 3), about, "square"),
        (torch.eye(2), about, "square"),
        (square, {}, "count"),
        (square, about | {"count": "-1"}, "expected a number of keys, found -1"),
        (square * 2, about, "SHA-256"),
    ):
        save_file({"sum": tensor}, path, metadata=metadata)
        with pytest.raises(CheckpointError, match=message):
            SecondMoment.load(path)
    save_file({"sum": square}, path, metadata=about)
    assert torch.equal(SecondMoment.load(path).sum, square)
    for absent in (tmp_path, tmp_path / "absent.safetensors"):
        with pytest.raises(CheckpointError, match="is no saved second moment"):
            SecondMoment.load(absent)


def test_keys_with_nan_are_refused(keys):
    keys[3, 1] = float("nan")
    with pytest.raises(NonFiniteError, match="0 to 49"):
        SecondMoment.from_keys(keys)


def test_no_keys_have_no_mean():
    moment = SecondMoment.from_keys(torch.zeros(0, 4))
    with pytest.raises(ConfigError, match="at least one preserved fact"):
        _ = moment.mean


def test_factored_once_for_each_policy(keys):
    moment = SecondMoment.from_keys(keys)
    assert moment.factor() is moment.factor()
    assert moment.factor("ridge") is not moment.factor()


def test_a_regular_matrix_is_solved_alike_under_every_policy(keys):
    matrix = keys.T @ keys
    for policy in ("error", "pinv", "ridge"):
        factor = SymmetricFactor(matrix, on_singular=policy)
        torch.testing.assert_close(factor.solve(keys.T), torch.linalg.solve(matrix, keys.T))
        assert (factor.singular, factor.rank, factor.ridge) == (False, 6, 0.0)
        assert not factor.outside(keys.T).any()


def test_condition_estimate(keys):
    """Within the factor h by which norms may differ of the exact reciprocal condition."""
    matrix = keys.T @ keys
    exact = 1 / float(torch.linalg.cond(matrix))
    assert exact / 6 < SymmetricFactor(matrix).rcond < exact * 6


def test_rounding_asymmetry_is_mended(keys):
    matrix = keys.T @ keys
    bent = matrix.clone()
    bent[0, 1] += 1e-3
    bent[1, 0] -= 1e-3
    torch.testing.assert_close(
        SymmetricFactor(bent).solve(keys.T), SymmetricFactor(matrix).solve(keys.T), rtol=1e-10, atol=1e-12
    )


def test_singular_matrices(keys):
    """Refused with rank and width; or least norm within the range; or with a recorded ridge."""
    few = keys[:4]
    matrix = few.T @ few
    with pytest.raises(SingularMomentError, match="rank 4 of 6") as caught:
        SymmetricFactor(matrix, name="second moment")
    assert (caught.value.rank, caught.value.width) == (4, 6)
    pinv = SymmetricFactor(matrix, on_singular="pinv")
    torch.testing.assert_close(pinv.solve(few.T), torch.linalg.pinv(matrix, hermitian=True) @ few.T)
    assert pinv.outside(torch.cat([few, keys[4:5]]).T).tolist() == [False] * 4 + [True]
    ridge = SymmetricFactor(matrix, on_singular="ridge")
    assert ridge.ridge == pytest.approx(1e-6 * float(matrix.trace()) / 6)
    shifted = matrix + ridge.ridge * torch.eye(6)
    torch.testing.assert_close(ridge.solve(few.T), torch.linalg.solve(shifted, few.T))


def test_nearly_singular_counts_as_singular():
    """Cholesky succeeds on it, so that the condition must be looked at."""
    matrix = torch.diag(torch.tensor([1.0, 1e-13], dtype=torch.float64))
    with pytest.raises(SingularMomentError, match="rank 1 of 2"):
        SymmetricFactor(matrix)


def test_a_zero_matrix_has_no_ridge():
    """There is no scale to take a ridge from."""
    with pytest.raises(SingularMomentError, match="rank 0 of 3"):
        SymmetricFactor(torch.zeros(3, 3), on_singular="ridge")


def test_nan_and_unknown_policies_are_refused():
    with pytest.raises(NonFiniteError):
        SymmetricFactor(torch.full((2, 2), float("nan")))
    with pytest.raises(ConfigError, match="on_singular"):
        SymmetricFactor(torch.eye(2), on_singular="lu")
