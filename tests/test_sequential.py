"""Sequential editing: the identities between its modes, what is measured after each batch, the run and its report."""

import json
import math

import pytest
import torch
from mlpswap_baselines.memit import Memit, MemitConfig, memit_delta

from mlpswap.benchmark.base import Base, the_task
from mlpswap.benchmark.config import SequentialConfig
from mlpswap.benchmark.entries import contenders
from mlpswap.benchmark.halfway import Halfway
from mlpswap.benchmark.progress import Progress
from mlpswap.benchmark.retention import finals
from mlpswap.benchmark.sequence import Course, make_steps
from mlpswap.benchmark.sequential import follow
from mlpswap.benchmark.splits import preserved_statistics, requests_of
from mlpswap.cli import main
from mlpswap.commands.sequential import sequential
from mlpswap.config import load_config
from mlpswap.editing import HostAdapter, exact, statistics_of
from mlpswap.editing.evaluation import patched_fact_mlp
from mlpswap.editing.locality import answers, mean_kl, nearest_cosine
from mlpswap.errors import ConfigError, FactsError
from mlpswap.model import MlpSwapForCausalLM, Patch
from mlpswap.model.patch import same_bits
from mlpswap.progress_bar import ProgressBar
from tests import test_report
from tests.contests import EVERY, STRONG, run_sequence
from tests.hosts import small_host


@pytest.fixture(scope="module")
def base(trained):
    return Base(trained, MlpSwapForCausalLM.from_pretrained(trained / "model"), 0)


@pytest.fixture(scope="module")
def task(base):
    return base.task


def config(**options):
    return SequentialConfig(**({"derange": True, "batches": 3, "size": 4} | options))


def _state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _follow(base, entry, tmp_path, **options):
    """(rows, the patch from the unedited model to the last one, if there is one)."""
    (contender,) = contenders([entry])
    file = tmp_path / "patch.safetensors"
    file.unlink(missing_ok=True)
    course = Course.of(base, config(**options))
    halfway = Halfway(
        Progress(tmp_path, base.fingerprint), course.mode, contender.label, tmp_path / "halfway"
    )
    rows = follow(course, contender, file, halfway, ProgressBar(disable=True))
    halfway.progress.path.unlink()
    return rows, Patch.load(file) if file.exists() else None


def _scores(rows):
    return [row | {"seconds": None, "mode": None} for row in rows]


@pytest.mark.parametrize("size", [4, 1])
def test_batches_are_disjoint_until_the_facts_run_out(task, size):
    """Every edit changes its fact, also where a batch is a single one (lifelong editing)."""
    steps = make_steps(task, config(batches=12 // size, size=size))
    parts = [set(step.altered.tolist()) for step in steps]
    assert all(len(part) == size for part in parts)
    assert len(set().union(*parts)) == 12
    assert not set().union(*parts) & set(steps[0].preserved.tolist())
    before = task.facts
    for part, step in zip(parts, steps, strict=True):
        assert set(before.changed(step.after)) == part
        before = step.after
    assert sorted(before.mapping) == sorted(task.facts.mapping)  # a permutation, once the round is through


def test_a_later_edit_of_a_fact_replaces_the_earlier_one(task):
    """Nine facts in batches of four: two batches a round, the ninth rests."""
    steps = make_steps(task, config(batches=5, preserved=len(task.facts) - 9))
    parts = [set(step.altered.tolist()) for step in steps]
    assert len(set().union(*parts)) <= 9
    assert not parts[0] & parts[1]
    assert not parts[2] & parts[3]
    before = task.facts
    for step in steps:
        assert set(before.changed(step.after)) == set(step.altered.tolist())
        before = step.after


def test_modes_share_the_facts_and_their_new_values(task):
    carried, alone, (whole,) = (
        make_steps(task, config(mode=mode)) for mode in ("sequential", "independent", "batch")
    )
    assert whole.after == carried[-1].after
    assert torch.equal(whole.altered, torch.cat([step.altered for step in carried]))
    for one, other in zip(carried, alone, strict=True):
        assert torch.equal(one.altered, other.altered)
        assert set(task.facts.changed(other.after)) == set(other.altered.tolist())
        assert all(other.after.mapping[i] == one.after.mapping[i] for i in one.altered.tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": 9}, "cannot edit 9 batches of 4 different facts: there are 32"),
        ({"preserved": 29}, "cannot edit 4 facts at a time and preserve 29 of 32"),
        ({"preserved": 99}, "preserve 99 of 32"),
        ({"batches": 0}, "batches = 0: expected at least 1"),
        ({"size": 0}, "size = 0: expected at least 1"),
        ({"preserved": -1}, "preserved = -1: expected at least 0"),
        ({"mode": "both"}, "mode = both: expected one of independent, batch, sequential"),
        ({"editors": []}, "editors is empty"),
        ({"editors": [{"name": "rome", "grid": "released"}]}, r"editors\[0\]: a grid is for the benchmark"),
        ({"batches": 1, "size": 1}, "cannot all change their value"),
    ],
)
def test_bad_settings_are_named(task, options, message):
    with pytest.raises((ConfigError, FactsError), match=message):
        make_steps(task, config(**options))


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry["name"])
def test_one_batch_is_the_same_in_sequence_and_at_once(base, tmp_path, entry):
    """Rows and weights; and the model is left as it was, to the last bit."""
    before, facts, history = _state(base.model), base.model.facts, base.model.history
    (one,), patch = _follow(base, entry, tmp_path, batches=1, size=8)
    (other,), whole = _follow(base, entry, tmp_path, batches=1, size=8, mode="batch")
    assert one["error"] is None
    assert _scores([one]) == _scores([other])
    for mine, theirs in zip(patch.changes, whole.changes, strict=True):
        assert all(same_bits(mine.new[name], tensor) for name, tensor in theirs.new.items())
    assert all(same_bits(before[name], tensor) for name, tensor in base.model.state_dict().items())
    assert (base.model.facts, base.model.history) == (facts, history)


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry["name"])
def test_undoing_all_batches_in_reverse_restores_the_model(trained, tmp_path, entry):
    """By hand, patch for patch, from files: the model is the one on disk, bit for bit, and out of order none goes off."""
    model = MlpSwapForCausalLM.from_pretrained(trained / "model")
    before, task, state = _state(model), the_task(model), None
    (contender,) = contenders([entry])
    (setting,) = contender.settings
    if entry["name"] == "rome":
        setting = type(setting)(**{**vars(setting), "on_singular": "ridge"})
    steps, adapter = make_steps(task, config(batches=2)), HostAdapter(model)
    statistics = preserved_statistics(adapter, task, steps[0])
    for number, step in enumerate(steps):
        requests = requests_of(adapter, task, step)
        result = contender.editor.edit(adapter, requests, setting, statistics=statistics, state=state)
        state = result.state
        result.patch.save(tmp_path / f"{number}.safetensors")
        result.patch.apply(model)
    first, second = (Patch.load(tmp_path / f"{number}.safetensors") for number in (0, 1))
    with pytest.raises(ValueError, match="does not fit"):
        first.undo(model)
    second.undo(model)
    first.undo(model)
    assert all(same_bits(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.facts == task.facts


def test_independent_batches_are_separate_runs(trained, base, tmp_path):
    """Each row is what a model fresh from disk, edited with that batch alone, scores when asked prompt by prompt."""
    entry = {"name": "memit", "cache": True, **STRONG}
    rows, patch = _follow(base, entry, tmp_path, mode="independent")
    assert patch is None
    for row, step in zip(rows, make_steps(base.task, config(mode="independent")), strict=True):
        model = MlpSwapForCausalLM.from_pretrained(trained / "model")
        adapter = HostAdapter(model)
        statistics = preserved_statistics(adapter, base.task, step)
        requests = requests_of(adapter, base.task, step)
        Memit().edit(adapter, requests, MemitConfig(cache=True, **STRONG), statistics=statistics).patch.apply(
            model
        )
        answered = adapter.predict(adapter.prompts(requests)).tolist()
        hits = [answer == request.target_ids[0] for answer, request in zip(answered, requests, strict=True)]
        assert row["immediate_efficacy"] == pytest.approx(sum(hits) / len(hits))
        kept = step.preserved
        batch = base.task.batch(kept, step.edit_template[kept], targets=base.task.target_ids(base.task.facts))
        said = model.last_scores(batch.input_ids, batch.attention_mask).argmax(dim=1)
        assert row["specificity"] == pytest.approx(float((said == batch.labels[:, -1]).double().mean()))
        assert row["retained_efficacy"] is None


def test_swap_does_not_drift(base, tmp_path):
    """After the last batch it has the very weights of one swap to the same truth."""
    rows, patch = _follow(base, EVERY[-1], tmp_path)
    (whole,), straight = _follow(base, EVERY[-1], tmp_path, mode="batch")
    for name in ("retained_efficacy", "retained_paraphrase", "specificity", "nonfact_ce_ratio", "kl"):
        assert rows[-1][name] == whole[name]
    ours, theirs = (patched_fact_mlp(base.model, each).state_dict() for each in (patch, straight))
    assert all(same_bits(ours[name], theirs[name]) for name in ours)
    assert all(row["seconds"] > 0 for row in rows)


def test_scores_are_those_of_the_model_with_all_patches_in_it(trained, base, tmp_path):
    """The last row against the answers of a model into which the saved patch has gone, asked in plain text."""
    rows, patch = _follow(base, EVERY[0], tmp_path)
    model = MlpSwapForCausalLM.from_pretrained(trained / "model")
    fresh, steps = HostAdapter(model), make_steps(base.task, config())
    weight = exact(model.fact_mlp.down.weight)
    asked = [request for step in steps for request in requests_of(fresh, base.task, step)]
    patch.apply(model)
    right = [
        answer == request.target_ids[0]
        for answer, request in zip(fresh.predict(fresh.prompts(asked)).tolist(), asked, strict=True)
    ]
    last = rows[-1]
    assert last["retained_efficacy"] == pytest.approx(sum(right) / 12)
    assert last["immediate_efficacy"] == pytest.approx(sum(right[-4:]) / 4)
    moved = exact(model.fact_mlp.down.weight) - weight
    assert last["weight_change"] == pytest.approx(float(moved.norm() / weight.norm()))
    assert (last["batch"], last["edits"], last["altered"], last["preserved"]) == (3, 12, 12, 20)
    groups = [len(part) for part in torch.arange(20).tensor_split(4)]
    change = sum(n * x for n, x in zip(groups, last["specificity_change_by_distance"], strict=True)) / 20
    unedited = float(Course.of(base, config()).right.double().mean())
    assert last["specificity"] == pytest.approx(unedited + change)


def test_locality_by_hand():
    """Agreement and divergence of two fact MLPs against softmax in a loop; of one with itself, 1 and 0."""
    one, other = (small_host(h=h) for h in (24, 32))
    rows = HostAdapter(one).rows(HostAdapter(one).prompts(
        [HostAdapter(one).request("The writer of {book} is", key, "Jane Austen") for key in one.facts.keys]
    ))  # fmt: skip
    with torch.no_grad():
        p, q = (one.head(rows.mixed(each.fact_mlp)).double().softmax(dim=1) for each in (one, other))
    wanted = sum(float(x * (math.log(x) - math.log(y))) for a, b in zip(p.tolist(), q.tolist(), strict=True)
                 for x, y in zip(a, b, strict=True)) / len(p)  # fmt: skip
    assert mean_kl(one, one.fact_mlp, other.fact_mlp, rows) == pytest.approx(wanted)
    assert mean_kl(one, one.fact_mlp, one.fact_mlp, rows) == 0
    assert torch.equal(answers(one, other.fact_mlp, rows), q.argmax(dim=1))
    corner = nearest_cosine(torch.eye(3), torch.tensor([[2.0, 0, 0], [0, 1, 1]]))
    assert corner.tolist() == pytest.approx([1, 0.5**0.5, 0.5**0.5])


def test_memits_cache_protects_earlier_edits():
    """The closed form with the cache, and the state that an editor hands on, are the same; without it the state is idle."""
    model = small_host(h=24)
    adapter, keys = HostAdapter(model), model.facts.keys
    first, second = (
        [adapter.request("The writer of {book} is", key, "Virginia Woolf")] for key in (keys[0], keys[1])
    )
    statistics = statistics_of(
        adapter,
        adapter.prompts([adapter.request("The writer of {book} is", k, "James Joyce") for k in keys[2:]]),
    )
    settings = MemitConfig(**STRONG), MemitConfig(cache=True, **STRONG)
    state = Memit().edit(adapter, first, settings[0], statistics=statistics).state
    K = [exact(adapter.keys(adapter.prompts(each), 0)).T for each in (first, second)]
    assert torch.allclose(state.caches[0], K[0] @ K[0].T)
    results = [Memit().edit(adapter, second, each, statistics=statistics, state=state) for each in settings]
    for result, cache in zip(results, (None, K[0] @ K[0].T), strict=True):
        residuals = result.diagnostics["residuals"].T
        wanted = memit_delta(residuals, K[1], statistics[0].mean, STRONG["lam"], cache=cache)
        (change,) = result.patch.changes
        delta = change.new["down.weight"].double() - change.old["down.weight"].double()
        assert torch.allclose(delta, wanted, atol=1e-6)
    weight = exact(model.fact_mlp.down.weight)
    moved = [
        float(((exact(each.patch.changes[0].new["down.weight"]) - weight) @ K[0]).norm()) for each in results
    ]
    assert moved[1] < moved[0]


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    return run_sequence(
        tmp_path_factory.mktemp("sequential") / "run", trained, f"editors={json.dumps(EVERY)}"
    )


def test_a_run_has_a_row_for_each_batch_of_each_editor(run):
    results = json.loads((run / "results.json").read_text())
    names = ["rome", "memit", "memit-2", "alphaedit", "ft", "swap"]
    assert [(row["editor"], row["batch"]) for row in results["rows"]] == [
        (n, b) for n in names for b in (1, 2)
    ]
    by = {(row["editor"], row["batch"]): row for row in results["rows"]}
    assert by["memit-2", 1]["retained_efficacy"] == by["memit", 1]["retained_efficacy"]  # no cache yet
    assert all(row["retained_efficacy"] == row["immediate_efficacy"] for (_, b), row in by.items() if b == 1)
    assert [by["alphaedit", b]["cache_rank"] for b in (1, 2)] == [4, 8]
    assert by["alphaedit", 2]["null_dimension"] > 0
    assert by["rome", 1]["setting"]["on_singular"] == "ridge"
    assert by["swap", 2]["cache_rank"] is None
    assert {row["mode"] for row in results["rows"]} == {"sequential"}
    assert results["metrics"]["swap_retained_efficacy"] >= 0.8
    assert {"base", "collect", *names} == results["stages"].keys()


def test_the_report_shows_curves_and_says_what_was_scored_when(run):
    html = (run / "report.html").read_text()
    page = test_report.Page(html)
    for text in (
        "Immediate",
        "retained",
        "counts as collapsed once",
        "2 × 4 edits on 32 facts",
        "cache = true",
    ):
        assert text in page.text
    names = ("retention", "specificity", "language", "drift", "seconds")
    assert all((run / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
    for check in (
        test_report.test_page_stands_alone,
        test_report.test_ids_are_unique_and_every_reference_resolves,
        test_report.test_page_can_be_heard_and_walked,
        test_report.test_no_control_or_format_character_reaches_the_page,
    ):
        check({"sequential": (html, page, {})}, "sequential")


@pytest.mark.slow
def test_on_the_tiny_preset_only_swap_keeps_old_edits_and_old_facts(tmp_path):
    """A tight base: editors that add to one matrix give up preserved facts, a refit does not."""
    folder = sequential(load_config(SequentialConfig, "sequential_tiny", [f"output_dir={tmp_path / 'run'}"]))
    last = {row["editor"]: row for row in finals(json.loads((folder / "results.json").read_text())["rows"])}
    assert all(row["batch"] == 8 for row in last.values())
    assert last["swap"]["retained_efficacy"] >= 0.95
    assert last["swap"]["specificity"] >= 0.97
    assert all(row["specificity"] < 0.9 for name, row in last.items() if name != "swap")


def test_a_collapse_is_told_once(trained, tmp_path, capsys):
    """FT without a box at a huge rate ruins the model; the note names the batch, and later rows stay marked."""
    folder = run_sequence(
        tmp_path / "run", trained, "editors=[{name: ft, lr: 10.0, clamp: null}]", "report=false"
    )
    results = json.loads((folder / "results.json").read_text())
    assert [row["collapsed"] for row in results["rows"]] == [True, True]
    (note,) = [note for note in results["notes"] if "collapsed" in note]
    assert note.startswith("ft: collapsed after batch 1: specificity")
    assert note in capsys.readouterr().out


def test_a_broken_editor_ends_its_own_sequence_only(trained, tmp_path, plugged):
    plugged("mlpswap.editors", broken="Broken")
    entries = [{"name": "broken", "how": how} for how in ("raise", "nothing", "in place", "infinite")]
    entries.append({"name": "swap", "construction": "hebbian"})
    folder = run_sequence(tmp_path / "run", trained, f"editors={json.dumps(entries)}")
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert [row["editor"] for row in rows] == ["broken", "broken-2", "broken-3", "broken-4", "swap", "swap"]
    wanted = ("ZeroDivisionError", "found NoneType", "changed the model itself", "NaN or infinity")
    for row, reason in zip(rows, wanted, strict=False):
        assert reason in row["error"]
    assert rows[-1]["error"] is None
    assert (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mode=both"], "mode = both"),
        (["batches=99"], "cannot edit 99 batches"),
        (["editors=[{name: romme}]"], "did you mean 'rome'"),
        (["editors=[{name: rome, grid: released}]"], "a grid is for the benchmark"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(trained, tmp_path, capsys, words, message):
    folder = tmp_path / "run"
    assert main(["sequential", f"model={trained}", f"output_dir={folder}", "size=4", *words]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()
