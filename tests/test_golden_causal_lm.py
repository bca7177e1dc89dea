"""The original protocols agree with published code on a tiny GPT-2, vector by vector (tests/golden/README.md)."""

import pytest
import torch

from mlpswap.errors import RequestError
from tests.causal_lms import Exam, golden, inputs

TOLERANCE = 1e-6  # relative, in float64; the runs take up to 80 Adam steps


def agree(found, wanted, what, worst):
    """Within the tolerance of the wanted vector's length."""
    error = (
        float((found - wanted).norm() / wanted.norm().clamp(min=1e-300))
        if wanted.any()
        else float(found.norm())
    )
    worst[what] = error
    assert error < TOLERANCE, (what, error)


def told(worst):
    """The largest error, which pytest -rP shows."""
    what, error = max(worst.items(), key=lambda item: item[1])
    print(f"largest relative error of {len(worst)}: {error:.1e} ({what})")


def options(settings, **more):
    """Published names to ours."""
    return {
        "layers": settings["layers"],
        "steps": settings["v_num_grad_steps"],
        "lr": settings["v_lr"],
        "weight_decay": settings["v_weight_decay"],
        "clamp": float(settings["clamp_norm_factor"]),
        "kl": settings["kl_factor"],
        **more,
    }


def change_of(result, site):
    """In GPT-2's own layout, (h, d)."""
    name = f"transformer.h.{site}.mlp.c_proj"
    (change,) = (each for each in result.patch.changes if each.module == name)
    return change.new["weight"] - change.old["weight"]


def test_requests_have_the_published_tokens():
    exam = Exam("rome")
    for request, wanted in zip(exam.requests, inputs()["requests"], strict=True):
        assert list(request.prompt_ids) == wanted["prompt_ids"]
        assert list(request.target_ids) == wanted["target_ids"]
        for context, other in zip(request.contexts, wanted["rewriting"], strict=True):
            assert [*context.ids, *request.target_ids[:-1]] == other["input_ids"]
            assert context.edited == other["lookup_index"]
        assert list(request.essence) == wanted["kl"]["input_ids"][: wanted["kl"]["lookup_index"] + 1]


ROME = [name for name in golden("rome")[1]["hparams"] if name != "last_layer_one_context"]


@pytest.mark.parametrize("name", ROME)
def test_rome(name):
    """k, u, r and v* of each request alone, and the weights after all six in turn."""
    exam, worst = Exam("rome"), {}
    settings = exam.settings[name]
    original = options(settings, key_mode="rome", mom2_adjustment=settings["mom2_adjustment"])
    for number, request in enumerate(exam.requests):
        result = exam.edit("rome", [request], original)
        tag = f"rome.{name}.case{number}"
        for site, part in result.diagnostics["edits"][request.id].items():
            where = f"{tag}.layer{site}" if len(settings["layers"]) > 1 else tag
            agree(part.u, exam.numbers[f"{where}.u"], f"{where}.u", worst)
            agree(part.r, exam.numbers[f"{where}.r"], f"{where}.r", worst)
            agree(change_of(result, site), torch.outer(part.u, part.r), f"{where}.weight", worst)
            if len(settings["layers"]) == 1:
                (run,) = (each for each in exam.runs if each["tag"] == tag)
                assert part.updates == run["grad_updates"]
                agree(part.key, exam.numbers[f"{where}.k_prompt"], f"{where}.k_prompt", worst)
                mean = exam.numbers[f"{where}.k_prefixes"].mean(dim=0)
                agree(part.mean_key, mean, f"{where}.k_mean", worst)
                agree(part.start, exam.numbers[f"{where}.v_prompt"], f"{where}.v_prompt", worst)
                agree(part.target, exam.numbers[f"{where}.v_star"], f"{where}.v_star", worst)
                agree(part.target - part.start, exam.numbers[f"{where}.delta"], f"{where}.delta", worst)
    exam.edit("rome", exam.requests, original).patch.apply(exam.model)
    for site in settings["layers"]:
        weight = exam.model.transformer.h[site].mlp.c_proj.weight.detach()
        after = exam.numbers[f"rome.{name}.sequential_all.layer{site}.weight"]
        agree(weight, after, f"rome.{name}.sequential_all.layer{site}", worst)
    told(worst)


def test_rome_at_the_last_layer():
    """Only a subject at the end reaches the prediction there; published code leaves the others as they are (its
    delta is zero), and we refuse them.
    """
    exam, worst = Exam("rome", prefixed=False), {}
    original = options(exam.settings["last_layer_one_context"], key_mode="rome")
    tag = "rome.last_layer_one_context"
    for number in (0, 1, 2, 3, 5):
        assert exam.numbers[f"{tag}.case{number}.delta"].norm() < 1e-13
        with pytest.raises(RequestError, match=f"request '{number}': .*no influence"):
            exam.edit("rome", [exam.requests[number]], original)
    result = exam.edit("rome", [exam.requests[4]], original)
    part = result.diagnostics["edits"]["4"][2]
    for what in ("u", "r"):
        agree(getattr(part, what), exam.numbers[f"{tag}.case4.{what}"], what, worst)
    agree(part.target, exam.numbers[f"{tag}.case4.v_star"], "v_star", worst)
    result.patch.apply(exam.model)
    weight = exam.model.transformer.h[2].mlp.c_proj.weight.detach()
    agree(weight, exam.numbers[f"{tag}.sequential_all.layer2.weight"], "weight", worst)
    told(worst)


def two_batches(name, setting, original, *, carry):
    """Both published batches, the second on the model edited by the first."""
    exam, worst, state = Exam(name), {}, None
    for number, rows in enumerate(([0, 1, 2, 3], [4, 5])):
        result = exam.edit(name, [exam.requests[row] for row in rows], original, state)
        tag = f"{name}.{setting}.batch{number}"
        agree(result.diagnostics["targets"], exam.numbers[f"{tag}.z"], f"{tag}.z", worst)
        (run,) = (each for each in exam.runs if each["tag"] == tag)
        assert result.diagnostics["updates"] == run["grad_updates"]
        for place, site in enumerate(original["layers"]):
            where, part = f"{tag}.layer{site}", result.diagnostics["layers"][site]
            agree(part["keys"], exam.numbers[f"{where}.keys"], f"{where}.keys", worst)
            agree(part["now"], exam.numbers[f"{where}.z_current"], f"{where}.z_current", worst)
            delta = exam.numbers[f"{where}.delta"]
            agree(change_of(result, site), delta, f"{where}.delta", worst)
            share = (exam.numbers[f"{tag}.z"] - exam.numbers[f"{where}.z_current"]) / (
                len(original["layers"]) - place
            )
            agree(part["residuals"], share, f"{where}.residuals", worst)
        result.patch.apply(exam.model)
        state = result.state if carry else None
    for site in original["layers"]:
        where = f"{tag}.layer{site}"
        if f"{where}.weight_after" in exam.numbers:
            weight = exam.model.transformer.h[site].mlp.c_proj.weight.detach()
            agree(weight, exam.numbers[f"{where}.weight_after"], f"{where}.weight_after", worst)
        if f"{where}.cache_after" in exam.numbers:
            agree(state.caches[site], exam.numbers[f"{where}.cache_after"], f"{where}.cache_after", worst)
    return result, worst


@pytest.mark.parametrize("setting", golden("memit")[1]["hparams"])
def test_memit(setting):
    """z, keys, residuals and changes of two batches, spread over two layers."""
    published = golden("memit")[1]["hparams"][setting]
    original = options(published, lam=float(published["mom2_update_weight"]))
    _, worst = two_batches("memit", setting, original, carry=False)
    told(worst)


@pytest.mark.parametrize("setting", golden("alphaedit")[1]["hparams"])
def test_alphaedit(setting):
    """The same within the null space, with the cache of keys; an empty null space changes nothing."""
    published = golden("alphaedit")[1]["hparams"][setting]
    original = options(published, null_threshold=published["nullspace_threshold"], l2=float(published["L2"]))
    result, worst = two_batches("alphaedit", setting, original, carry=True)
    (run,) = (each for each in golden("alphaedit")[1]["runs"] if each["tag"] == f"alphaedit.{setting}.batch1")
    found = [part["null_dimension"] for part in result.diagnostics["layers"].values()]
    assert found == run["null_dim"]
    assert result.patch.is_empty == (setting == "paper_threshold")
    told(worst)


@pytest.mark.parametrize("run", golden("ft")[1]["runs"], ids=lambda run: run["tag"])
def test_fine_tuning(run):
    """Weight and bias after 25 steps, within the box and without one."""
    exam, worst, published = Exam("ft"), {}, run["hparams"]
    original = {
        "layers": published["layers"],
        "lr": published["lr"],
        "epochs": published["num_steps"],
        "batch_size": published["batch_size"],
        "clamp": published["norm_constraint"] or None,
        "train_bias": True,
    }
    result = exam.edit("ft", [exam.requests[case] for case in run["case_ids"]], original)
    (change,) = result.patch.changes
    for name in ("weight", "bias"):
        wanted = exam.numbers[f"{run['tag']}.{change.module}.{name}.delta"]
        agree(change.new[name] - change.old[name], wanted, name, worst)
    assert result.diagnostics["epochs"] == run["steps"]
    assert result.diagnostics["first_loss"] == pytest.approx(run["first_loss"], rel=1e-9)
    assert result.diagnostics["last_loss"] == pytest.approx(run["last_loss"], rel=1e-6)
    told(worst)
