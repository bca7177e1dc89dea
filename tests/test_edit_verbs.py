"""`mlpswap edit`, `apply` and `undo` from the shell: what they write, what they leave alone, what they refuse."""

import json

import pytest

from mlpswap.cli import main
from mlpswap.model import MlpSwapForCausalLM, Patch
from mlpswap.tasks.books import TRAINED, fill
from tests.causal_lms import random_model

STRONG = ["editor.steps=100", "editor.lr=0.5"]


def _fails(capsys, *words):
    assert main(list(words)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("mlpswap: ")
    return error


def _model(folder):
    return MlpSwapForCausalLM.from_pretrained(folder / "model")


@pytest.fixture(scope="module")
def pairs(trained):
    """Two facts, each with the other's value."""
    facts = _model(trained).facts
    return {facts.keys[i]: facts.value_of(facts.keys[1 - i]) for i in (0, 1)}


@pytest.fixture
def file(tmp_path, pairs):
    path = tmp_path / "mine.csv"
    path.write_text("title,writer\n" + "".join(f'"{key}","{value}"\n' for key, value in pairs.items()))
    return path


@pytest.mark.parametrize("editor", ["rome", "memit", "swap"])
def test_edits_of_a_file_with_any_editor(trained, tmp_path, capsys, file, pairs, editor):
    """Model, patch and table agree; the patch taken off gives the source back; the source itself is untouched."""
    source = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    folder = tmp_path / "edited"
    words = ["edit", f"model={trained}", f"file={file}", "key=title", "value=writer", f"output_dir={folder}"]
    options = [] if editor == "swap" else [*STRONG]
    options += ["editor.clip=null", "editor.lam=0.001"] if editor == "memit" else []
    assert main([*words, f"editor.name={editor}", *options]) == 0
    out = capsys.readouterr().out
    results = json.loads((folder / "results.json").read_text())
    assert results["kind"] == "edit"
    assert {row["key"]: row["after"] for row in results["rows"]} == pairs
    assert all(row["before"] != row["wanted"] and row["refused"] is None for row in results["rows"])
    assert f"efficacy     {results['metrics']['efficacy']:.4f}" in out
    assert f"specificity  {results['metrics']['specificity']:.4f}" in out
    edited, patch = _model(folder), Patch.load(folder / "patch.safetensors")
    for row in results["rows"]:
        assert edited.ask(row["prompt"]) == row["after"] == edited.facts.value_of(row["key"])
    patch.undo(edited)
    assert edited.state_sha256() == _model(trained).state_sha256()
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == source
    assert "finished run" in _fails(capsys, *words, f"editor.name={editor}")


def test_a_patch_goes_on_and_off_from_the_shell(trained, tmp_path, capsys, pairs):
    """apply gives the edited model, undo the source, bit for bit; neither fits a model that it was not made for."""
    changes = f"changes={json.dumps(pairs)}"
    made, applied, undone = (tmp_path / name for name in ("made", "applied", "undone"))
    assert main(["edit", f"model={trained}", changes, f"output_dir={made}", "editor.name=rome", *STRONG]) == 0
    patch = f"patch={made / 'patch.safetensors'}"
    capsys.readouterr()
    assert main(["apply", patch, f"model={trained}", f"output_dir={applied}"]) == 0
    out = capsys.readouterr().out
    assert all(f"-> {value}" in out for value in pairs.values())
    assert _model(applied).state_sha256() == _model(made).state_sha256()
    assert main(["undo", patch, f"model={applied}", f"output_dir={undone}"]) == 0
    back, source = _model(undone), _model(trained)
    assert back.state_sha256() == source.state_sha256()
    assert (back.facts, back.history) == (source.facts, source.history)
    rows = json.loads((undone / "results.json").read_text())["rows"]
    assert {row["key"]: row["after"] for row in rows} == {key: source.facts.value_of(key) for key in pairs}
    again = tmp_path / "again"
    assert "patch does not fit" in _fails(capsys, "apply", patch, f"model={applied}", f"output_dir={again}")
    assert "patch does not fit" in _fails(capsys, "undo", patch, f"model={trained}", f"output_dir={again}")
    assert not again.exists()
    inside = ["undo", patch, f"model={applied}", f"output_dir={applied}", "--overwrite"]
    assert "lies in output_dir" in _fails(capsys, *inside)
    assert _model(applied).state_sha256() == _model(made).state_sha256()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["edit", "model={run}", "changes={Emma: Jane Austen}"], "editor: key 'name' is missing"),
        (["edit", "model={run}", "editor.name=rome"], "nothing to change"),
        (["edit", "editor.name=rome", "changes={Emma: Jane Austen}"], "model is missing"),
        (["edit", "model={run}", "editor.name=romme", "changes={Emma: Jane Austen}"], "did you mean 'rome'"),
        (["edit", "model={run}", "editor={name: rome, stepz: 1}", "changes={Emma: Jane Austen}"], "stepz"),
        (["edit", "model={run}", "editor={name: rome, grid: released}", "changes={Emma: X}"], "a grid is for"),
        (["edit", "model={run}", "editor={name: rome, label: a}", "changes={Emma: X}"], "a label is for"),
        (["edit", "model={run}", "editor.name=rome", "changes={Emma: Nobody}"], "Nobody"),
        (["edit", "model={run}", "editor.name=rome", "file=gone.csv"], "gone.csv"),
        (["edit", "model={run}", "editor.name=broken", "changes={Emma: George Orwell}"], "broken failed: Zero"),
        (["edit", "model={run}", "editor={name: broken, how: nothing}", "changes={Emma: George Orwell}"],
         "expected an EditResult, found NoneType"),
        (["edit", "model={run}", "editor={name: memit, lr: 1e308}", "changes={Emma: George Orwell}"],
         "nothing was edited: NaN or infinity"),
        (["edit", "model={run}", "editor.name=ft", "changes={Emma: Jane Austen}"],
         "nothing to edit: the model knows and tells 1 requested fact already"),
        (["apply", "model={run}"], "patch is missing"),
        (["apply", "patch=x.safetensors"], "model is missing"),
        (["apply", "model={run}", "patch=x.json"], "ends in .safetensors"),
        (["undo", "model={run}", "patch=gone.safetensors"], "gone.safetensors cannot be read: there is no such file"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence_and_leaves_nothing(
    trained, tmp_path, monkeypatch, capsys, plugged, words, message
):
    plugged("mlpswap.editors", broken="Broken")
    monkeypatch.chdir(tmp_path)
    assert message in _fails(capsys, *(word.replace("{run}", str(trained)) for word in words))
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("book,author\nEmma,Jane Austen\nEmma,George Orwell\n", "but 'Jane Austen' on line 2"),
        ("book,author\nEmma\n", "with text in 'book' and 'author'"),
        ("book;author\nEmma;X\n", "the columns seem to be separated by ';', where a comma is expected"),
        (f"book,author\nEmma,{'x' * 200_000}\n", "expected fields of at most 131,072 characters"),
    ],
)
def test_a_bad_file_suggests_nothing_that_the_verb_has_not(trained, tmp_path, capsys, text, end):
    (tmp_path / "mine.csv").write_text(text)
    words = [f"model={trained}", f"file={tmp_path / 'mine.csv'}", f"output_dir={tmp_path / 'new'}"]
    assert _fails(capsys, "edit", *words, "editor.name=ft").endswith(end)


def test_an_unknown_name_is_told_with_its_file(trained, tmp_path, capsys):
    (tmp_path / "mine.csv").write_text("book,author\nEmma,Nobody\n")
    words = [f"model={trained}", f"file={tmp_path / 'mine.csv'}", f"output_dir={tmp_path / 'new'}"]
    for verb in (["edit", "editor.name=ft"], ["swap"]):
        assert "mine.csv: no value 'Nobody'" in _fails(capsys, *verb, *words)


def test_a_refused_request_is_reported_and_the_others_are_carried_out(
    trained, tmp_path, plugged, capsys, pairs
):
    """It stands in the table with the reason, and counts against efficacy."""
    plugged("mlpswap.editors", picky="Picky")
    folder = tmp_path / "edited"
    words = ["edit", f"model={trained}", f"changes={json.dumps(pairs)}", f"output_dir={folder}"]
    assert main([*words, "editor.name=picky", *STRONG]) == 0
    first, second = pairs
    assert f"refused: {first}: not this one" in capsys.readouterr().out
    results = json.loads((folder / "results.json").read_text())
    assert results["refused"] == {first: "not this one"}
    assert results["metrics"]["efficacy"] == 0.5
    assert [row["refused"] for row in results["rows"]] == ["not this one", None]
    assert _model(folder).facts.value_of(first) == _model(trained).facts.value_of(first)
    assert _model(folder).facts.value_of(second) == pairs[second]


def test_a_request_for_what_is_known_is_counted_and_has_no_edit(trained, tmp_path, capsys, pairs):
    """To write what is there already can only do harm: the edit is that of the other requests, with this fact preserved."""
    known = dict(list(_model(trained).facts.pairs())[5:6])
    for name, changes in (("with", pairs | known), ("without", pairs)):
        words = [f"model={trained}", f"changes={json.dumps(changes)}", f"output_dir={tmp_path / name}"]
        assert main(["edit", *words, "editor.name=memit", "editor.lam=1", *STRONG]) == 0
        told = "note: 1 request asked for what the model tells already" in capsys.readouterr().out
        assert told == (name == "with")
    assert _model(tmp_path / "with").state_sha256() == _model(tmp_path / "without").state_sha256()
    assert len(json.loads((tmp_path / "with" / "results.json").read_text())["rows"]) == 2


def test_other_facts_that_an_edit_costs_are_told(trained, tmp_path, capsys, pairs):
    """The same facts as one finds by asking both models."""
    folder = tmp_path / "new"
    words = [f"model={trained}", f"changes={json.dumps(pairs)}", f"output_dir={folder}"]
    assert main(["edit", *words, "editor={name: ft, lr: 0.5, clamp: null, epochs: 5}"]) == 0
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    old, new = _model(trained), _model(folder)
    lost = 0
    for number, (book, author) in enumerate(old.facts.pairs()):
        prompt = fill(TRAINED[number % len(TRAINED)], book)
        lost += book not in pairs and old.ask(prompt) == author != new.ask(prompt)
    assert lost == metrics["lost"]
    assert lost > 0
    noun = "fact" if lost == 1 else "facts"
    assert f"note: {lost} other {noun} told right before, not any more" in capsys.readouterr().out


def test_a_model_of_another_kind_is_named(tmp_path, capsys):
    random_model("gpt2").save_pretrained(tmp_path / "gpt2")
    err = _fails(capsys, "edit", f"model={tmp_path / 'gpt2'}", "changes={Emma: X}", "editor.name=rome")
    assert "a model of type gpt2" in err
    assert "CausalLMAdapter" in err
