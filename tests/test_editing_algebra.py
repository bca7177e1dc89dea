"""The closed forms of ROME, MEMIT and AlphaEdit against published numbers and against plain loops."""

import json
from pathlib import Path

import pytest
import torch
from mlpswap_baselines.alphaedit import alphaedit_delta, null_basis
from mlpswap_baselines.memit import memit_delta
from mlpswap_baselines.rome import rome_delta
from safetensors.torch import load_file

from mlpswap.editing import clip_residuals
from mlpswap.errors import ConfigError, DegenerateKeysError, SingularMomentError
from mlpswap.randomness import generator
from tests.reference import alphaedit_by_projector, alphaedit_over_edits, memit_by_inverse, rome_one_by_one

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "linalg.json").read_text())["cases"]
RUNS = [(case, run) for case, content in CASES.items() for run in content["runs"]]


class Case:
    """Inputs in columns, as the functions take them."""

    def __init__(self, name: str):
        self.tensors = load_file(GOLDEN / f"linalg_{name}.safetensors")
        self.W, self.K1, self.R = self.tensors["W"], self.tensors["alter_keys"].T, self.tensors["residuals"].T
        self.gram = self.tensors["preserve_gram"]
        self.C0 = self.gram / len(self.tensors["preserve_keys"])
        self.tolerance = 1e-7 if name == "near_def" else 1e-9

    def clipped(self, factor):
        return clip_residuals(self.R, (self.W @ self.K1).norm(dim=0), factor)


def relative(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.fixture(scope="module")
def cases():
    return {name: Case(name) for name in CASES}


@pytest.mark.parametrize(("name", "run"), RUNS, ids=[f"{name}-{run['tag']}" for name, run in RUNS])
def test_published_runs(cases, name, run):
    """Every run that has a well-defined answer is met; the others are refused or answered with least norm."""
    case, params = cases[name], run["params"]
    method = run["tag"].split(".")[0]
    if method == "memit":
        R = case.clipped(params["clip_norm"])
        delta = memit_delta(R, case.K1, case.C0, params["lambd"])
        least_norm = memit_by_inverse(R, case.K1, case.C0, params["lambd"])
        assert relative(delta, least_norm) < 1e-8
    elif method == "alphaedit":
        Q = null_basis(case.gram, params["tol"])
        delta = alphaedit_delta(case.clipped(params["clip_norm"]), case.K1, Q, 1.0)
    elif run["outcome"] == "ok":
        rows = case.tensors["rome_rows"] if run["tag"].endswith("without_zero_key") else slice(None)
        delta = rome_delta(case.R[:, rows], case.K1[:, rows], case.C0)
    else:
        with pytest.raises(DegenerateKeysError if run["outcome"] == "nonfinite" else SingularMomentError):
            rome_delta(case.R, case.K1, case.C0)
    if run["outcome"] == "ok":
        wanted = case.tensors[run["tensor"]] - case.W
        assert (delta - wanted).norm() <= case.tolerance * wanted.norm()
        print(
            f"relative error of {name} {run['tag']}: {(delta - wanted).norm() / wanted.norm().clamp(min=1e-300):.1e}"
        )


@pytest.mark.parametrize("name", CASES)
def test_clip_and_null_space_agree_with_the_published_steps(cases, name):
    """The intermediate values, so that a failure above can be placed."""
    case = cases[name]
    torch.testing.assert_close(case.clipped(0.75), case.tensors["clipped.0.75"].T, rtol=1e-12, atol=1e-14)
    for threshold in ("0.01", "1", "10"):
        Q = null_basis(case.gram, float(threshold))
        assert Q.shape[1] == CASES[name]["null_dim"][threshold]
        torch.testing.assert_close(Q @ Q.T, case.tensors[f"projector.tol{threshold}"], rtol=0, atol=1e-9)


def test_zero_and_repeated_keys(cases):
    """Case edge: a zero key contributes nothing to MEMIT and AlphaEdit; ROME names it."""
    case = cases["edge"]
    keep = [0, 2, 3, 4, 5]
    Q = null_basis(case.gram, 1e3)
    assert Q.shape[1]
    for delta in (
        lambda rows: memit_delta(case.R[:, rows], case.K1[:, rows], case.C0, 1.0),
        lambda rows: alphaedit_delta(case.R[:, rows], case.K1[:, rows], Q, 1.0),
    ):
        torch.testing.assert_close(delta(slice(None)), delta(keep))
    with pytest.raises(DegenerateKeysError) as caught:
        rome_delta(case.R, case.K1, case.C0)
    assert caught.value.indices == (1,)


@pytest.fixture
def problem():
    """R, K1, preserved keys: d = h, so that a transposed weight would fit and be wrong."""
    source = generator(0, "problem")
    d = h = 12
    return [
        torch.randn(rows, n, generator=source, dtype=torch.float64) for rows, n in ((d, 5), (h, 5), (h, 40))
    ]


def test_forms_that_must_agree(problem):
    """Each update equals its plain loop and, for AlphaEdit, its two other published forms."""
    R, K1, K0 = problem
    C0 = K0 @ K0.T / 40
    assert relative(rome_delta(R, K1, C0), rome_one_by_one(R, K1, C0)) < 1e-12
    for lam in (15000.0, 1.0):
        dual = torch.linalg.inv(K1.T @ torch.linalg.inv(C0) @ K1 + lam * torch.eye(5, dtype=R.dtype))
        wanted = memit_by_inverse(R, K1, C0, lam)
        assert relative(memit_delta(R, K1, C0, lam), wanted) < 1e-12
        assert relative(R @ dual @ K1.T @ torch.linalg.inv(C0), wanted) < 1e-11
    Q = null_basis(K0 @ K0.T, 30.0)
    assert 0 < Q.shape[1] < 12
    P, none = Q @ Q.T, torch.zeros_like(C0)
    cache = K0[:, :3] @ K0[:, :3].T
    wanted = alphaedit_by_projector(R, K1, P, 1.0, none)
    assert relative(alphaedit_delta(R, K1, Q, 1.0), wanted) < 1e-12
    assert relative(alphaedit_over_edits(R, K1, P, 1.0), wanted) < 1e-12
    assert (
        relative(alphaedit_delta(R, K1, Q, 1.0, cache), alphaedit_by_projector(R, K1, P, 1.0, cache)) < 1e-12
    )


def test_what_the_updates_promise(problem):
    """One ROME edit meets its constraint; MEMIT with lambda = 0 meets all; AlphaEdit leaves preserved outputs alone."""
    R, K1, K0 = problem
    C0 = K0 @ K0.T / 40
    torch.testing.assert_close(rome_delta(R[:, :1], K1[:, :1], C0) @ K1[:, :1], R[:, :1])
    torch.testing.assert_close(memit_delta(R, K1, C0, 0.0) @ K1, R)
    few = K0[:, :6]
    Q = null_basis(few @ few.T, 1e-9)
    assert Q.shape[1] == 6
    delta = alphaedit_delta(R, K1, Q, 1e-6)
    assert delta.norm() > 1
    assert (delta @ few).norm() < 1e-10


def test_order_of_edits_is_irrelevant(problem):
    R, K1, K0 = problem
    C0, order = K0 @ K0.T / 40, torch.tensor([3, 0, 4, 2, 1])
    Q = null_basis(K0 @ K0.T, 30.0)
    for delta in (
        lambda r, k: rome_delta(r, k, C0),
        lambda r, k: memit_delta(r, k, C0, 15.0),
        lambda r, k: alphaedit_delta(r, k, Q, 1.0),
    ):
        torch.testing.assert_close(delta(R, K1), delta(R[:, order], K1[:, order]), rtol=1e-12, atol=1e-14)


def test_clip():
    """Shortens what is too long, once; keeps zero residuals; a zero reference silences."""
    R = torch.tensor([[3.0, 0.3, 0.0, 3.0], [4.0, 0.4, 0.0, 4.0]])
    reference = torch.tensor([2.0, 2.0, 2.0, 0.0])
    clipped = clip_residuals(R, reference, 0.5)
    torch.testing.assert_close(clipped.norm(dim=0), torch.tensor([1.0, 0.5, 0.0, 0.0]))
    torch.testing.assert_close(clip_residuals(clipped, reference, 0.5), clipped)
    assert clip_residuals(R, reference, None) is R
    with pytest.raises(ConfigError, match="clip"):
        clip_residuals(R, reference, -1.0)


def test_null_space_by_energy():
    """The smallest eigenvalues 1, 2, 3 of 1..4 hold 0.6 of the trace; their eigenvectors are kept up to that share."""
    S = torch.diag(torch.tensor([4.0, 1.0, 3.0, 2.0]))
    assert null_basis(S, energy=0.6).shape == (4, 3)
    assert null_basis(S, energy=0.59).shape == (4, 2)
    assert null_basis(S, energy=0.09).shape == (4, 0)
    assert null_basis(S, energy=1.0).shape == (4, 4)
    with pytest.raises(ConfigError, match="one of the two"):
        null_basis(S, 1.0, energy=0.5)
    with pytest.raises(ConfigError, match="one of the two"):
        null_basis(S)


def test_an_empty_null_space_changes_nothing(problem):
    R, K1, K0 = problem
    Q = null_basis(K0 @ K0.T, 1e-6)
    assert Q.shape[1] == 0
    assert torch.equal(alphaedit_delta(R, K1, Q, 1.0), torch.zeros(12, 12, dtype=R.dtype))


@pytest.mark.parametrize(
    "call",
    [
        lambda R, K, C: memit_delta(R, K, C, -1.0),
        lambda R, K, C: memit_delta(R.repeat(1, 3), K.repeat(1, 3), C, 0.0),
        lambda R, K, C: alphaedit_delta(R, K, torch.eye(12), 0.0),
        lambda R, K, C: null_basis(C, 0.0),
        lambda R, K, C: null_basis(C, energy=1.5),
        lambda R, K, C: memit_delta(R, K, C, 1.0, on_singular="hope"),
    ],
)
def test_impossible_settings_are_refused(problem, call):
    R, K1, K0 = problem
    with pytest.raises(ConfigError):
        call(R, K1, K0 @ K0.T / 40)


def test_a_key_outside_a_singular_moment(problem):
    """With pinv, ROME edits keys within the range of C0 and refuses the others by index."""
    R, K1, K0 = problem
    few = K0[:, :6]
    C0, inside = few @ few.T / 6, few[:, :2] @ torch.tensor([[1.0], [2.0]], dtype=R.dtype)
    torch.testing.assert_close(rome_delta(R[:, :1], inside, C0, on_singular="pinv") @ inside, R[:, :1])
    with pytest.raises(DegenerateKeysError, match="outside") as caught:
        rome_delta(R[:, :2], torch.cat([inside, K1[:, :1]], dim=1), C0, on_singular="pinv")
    assert caught.value.indices == (1,)
    ridge = rome_delta(R[:, :1], K1[:, :1], C0, on_singular="ridge")
    torch.testing.assert_close(ridge @ K1[:, :1], R[:, :1])
