"""The command line: one sentence and exit code 2 for every mistake, and the small verbs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlpswap.cli import VERBS, main

BOOKS = str(Path(__file__).resolve().parent.parent / "data" / "books.csv")


def _fails(capsys, *words):
    assert main(list(words)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("mlpswap: ")
    return error


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["train", "--config", "no_preset"], "no_preset"),
        (["train", "--config", "no/file.yaml"], "no/file.yaml"),
        (["train", "training.stepz=3"], "training.stepz"),
        (["train", "training.steps=three"], "training.steps"),
        (["train", "facts.path=none.csv"], "none.csv"),
        (["train", "facts.count=99999", "wandb.mode=disabled"], "99999"),
        (["train", "mlp={construction: magic}", "facts.count=9"], "magic"),
        (["train", "mlp={construction: gd, hh: 3}", "facts.count=9"], "hh"),
        (["train", "host.n_head=3", "facts.count=9"], "n_head"),
        (["benchmark", "splits=[{altered: 3}]", "editors=[{name: romme}]"], "rome"),
        (["benchmark"], "splits"),
        (["benchmark", "splits=[{altered: 3}]", "model=nowhere"], "nowhere"),
        (["ask", "What?"], "model"),
        (["ask", "What?", "model=nowhere"], "nowhere"),
        (["swap", "model=nowhere"], "changes"),
        (["report", "nowhere"], "nowhere"),
        (["list", "cats"], "cats"),
        (["validate", "nothing.yaml"], "nothing.yaml"),
        (["build", "mlp={h: 3}"], "construction"),
        (["train", "training.lr=.nan"], "training.lr"),
        (["train", "training.weight_decay=.inf"], "training.weight_decay"),
        (["train", "mlp={construction: gd, noise: .inf}"], "mlp.noise"),
        (["train", "mlp=[1, 2]"], "mlp"),
        (["ask", " ", "model=x"], "prompt"),
        (["train", "training.warmup=401"], "training.warmup = 401: expected at most training.steps = 400"),
        (["train", "mlp={construction: hebbian, h: 10000000000}"], "mlp.h = 10000000000"),
        (["train", "swap.constructions=[{construction: gd, h: 10000000000}]"], "swap.constructions[0].h"),
        (["train", "host.n_embd=1000000000"], "host.n_embd = 1000000000"),
        (["train", "host.n_layer=1000000000000"], "host.n_layer"),
        (["train", "host.n_layer=0"], "host.n_layer"),
        (["train", "host.router_hidden=100000000000"], "host.router_hidden"),
        (["train", "task=ssfr", "facts.count=100000000000"], "facts.count"),
        (["train", "training.batch_size=1000000000"], "training.batch_size = 1000000000"),
        (["train", "output_dir=" + "x" * 300], "File name too long"),
        (["train", "output_dir=" + "x" * 250], "File name too long"),
        (["train", r'output_dir="a\0b"'], "null byte"),
        (["ask", "Who?", "wrote it?", "model=x"], "wrote it?"),
        (["validate", "--config", "books_tiny", "books_4k"], "books_4k"),
        (["build", "n_embd=1", "facts.count=2"], "keys 0, 1 are"),
        (["build", f"n_embd={10**9}"], f"memory; the largest settings are n_embd = {10**9}"),
        (["build", f"mlp.h={10**8}"], f"memory; the largest settings are mlp.h = {10**8}"),
        (
            ["build", f"n_embd={10**17}", "facts.count=3"],
            f"memory; the largest settings are n_embd = {10**17}",
        ),
        (["build", f"mlp.h={10**30}"], "mlp.h has 100 bits: expected a number below 2^63"),
        (["facts", "facts.count=9999"], "takes all there are"),
    ],
)
def test_a_mistake_gets_one_sentence_that_names_it(capsys, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    assert named in _fails(capsys, *words)


def test_overrides_may_stand_anywhere_among_the_flags(capsys):
    assert main(["facts", "show=1", "--debug", "facts.count=3", "show=2"]) == 0
    assert capsys.readouterr().out.count(" -> ") == 2


def test_an_unknown_flag_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["facts", "--shw", "show=1"])
    assert stop.value.code == 2
    assert "--shw" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys):
    assert main(["train", "--debug", "training.stepz=3"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_error_texts_cannot_drive_the_terminal(capsys):
    assert "\x1b" not in _fails(capsys, "ask", "What?", "model=\x1b[31mred")


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_explains_its_keys(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "keys (with defaults):" in out
    main_key = {"ask": "[PROMPT]", "list": "[WHAT]", "report": "[RUN]", "validate": "[FILE]"}.get(verb, "")
    assert out.startswith(f"usage: mlpswap {verb} {main_key}".strip())


def test_facts_shows_the_prompts_that_are_trained_on(capsys, tmp_path):
    """Titles with format characters appear literally; terminal escapes are shown, not obeyed."""
    path = tmp_path / "own file ü.csv"
    path.write_text(
        'title,writer\n"The {book} of {author}",A\n100% %s,B\n"\x1b[31mRed",C\n', encoding="utf-8"
    )
    assert main(["facts", f"facts.path={path}", "facts.key=title", "facts.value=writer"]) == 0
    out = capsys.readouterr().out
    assert "The writer of The {book} of {author} is -> A" in out
    assert "100% %s" in out
    assert "\x1b" not in out
    assert "\\x1b[31mRed" in out


def test_build_reports_what_is_stored(capsys):
    words = [
        "build",
        f"facts.path={BOOKS}",
        "facts.count=64",
        "n_embd=32",
        "mlp={construction: hebbian, h: 96}",
    ]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "accuracy      1.0000 (0 wrong)" in out
    assert "parameters    9216" in out


def test_list_shows_what_there_is(capsys):
    for what, wanted in (
        ("constructions", "hebbian"), ("editors", "alphaedit"), ("presets", "books_tiny"), ("metrics", "efficacy"),
    ):  # fmt: skip
        assert main(["list", what]) == 0
        out = capsys.readouterr().out
        assert wanted in out
        assert "BROKEN" not in out


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("swap", ["editor swap", "construction=null", "options of the construction, such as"]),
        ("gd", ["construction gd", "h=null"]),
        ("permuted_knots", ["method permuted_knots", "reweightings=0"]),
    ],
)
def test_list_shows_the_options_of_one(capsys, name, wanted):
    assert main(["list", name]) == 0
    out = capsys.readouterr().out
    assert all(text in out for text in wanted)


def test_a_plug_in_cannot_drive_the_terminal(capsys, plugged):
    """Names, descriptions and errors of plug-ins are other people's text."""
    plugged("mlpswap.editors", coloured="Coloured", lost="Lost\x1b[31m", **{"na\x1bme": "Coloured"})
    assert main(["list", "editors"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"Red \x1b[31m text and a second line" in out  # in one line
    assert out.count("BROKEN") == 2


@pytest.mark.parametrize(
    "mistake",
    [
        "facts.path=/nope.csv",
        "mlp={construction: zz}",
        "mlp={construction: gd, h: 1}",
        "facts.path=HERE/own.csv",
    ],
)
def test_overwrite_loses_nothing_when_the_new_run_cannot_start(trained, tmp_path, capsys, mistake):
    """The finished run, and a fact file inside of it, are still there after the mistake."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    (folder / "own.csv").write_text("book,author\nA,B\n")
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    words = ["train", "--overwrite", f"output_dir={folder}", "facts.count=9", "wandb.mode=disabled"]
    _fails(capsys, *words, mistake.replace("HERE", str(folder)))
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
    _fails(
        capsys, "benchmark", "--overwrite", f"model={folder}", f"output_dir={folder}", "splits=[{altered: 2}]"
    )
    _fails(
        capsys,
        "benchmark",
        "--overwrite",
        f"model={trained}",
        f"output_dir={folder}",
        "splits=[{altered: 999}]",
    )
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before


def test_each_construction_says_in_a_line_what_one_chooses_by(capsys):
    """Source, parameters, hidden size, what it assumes, when to use it."""
    assert main(["list", "constructions"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "[built-in" in line]
    assert len(lines) == 6
    for line in lines:
        assert "arXiv" in line or "(ours)" in line
        for word in ("Parameters", "h ", "Keys", "alues", "Use it"):
            assert word in line, (word, line)


def test_swap_and_ask_from_the_shell(trained, tmp_path, capsys):
    """The altered fact is answered by the model on disk; the patch undoes it; the source run is untouched."""
    from mlpswap.model import MlpSwapForCausalLM, Patch

    model = MlpSwapForCausalLM.from_pretrained(trained / "model")
    book, other = model.facts.keys[0], model.facts.value_of(model.facts.keys[5])
    prompt = f"The writer of {book} is"
    old = model.ask(prompt)
    words = [
        "swap",
        f"model={trained}",
        f"changes={json.dumps({book: other})}",
        f"output_dir={tmp_path / 'new'}",
    ]
    assert main([*words, "construction=hebbian"]) == 0
    assert f"-> {other}" in capsys.readouterr().out
    assert main(["ask", prompt, f"model={tmp_path / 'new'}"]) == 0
    assert capsys.readouterr().out.strip() == other
    swapped = MlpSwapForCausalLM.from_pretrained(tmp_path / "new" / "model")
    Patch.load(tmp_path / "new" / "patch.safetensors").undo(swapped)
    assert swapped.ask(prompt) == old
    results = json.loads((tmp_path / "new" / "results.json").read_text())
    assert results["kind"] == "swap"
    assert results["metrics"]["efficacy"] == 1.0
    assert [row["after"] for row in results["rows"]] == [other]
    assert "finished run" in _fails(capsys, *words)
    capsys.readouterr()
    words[2] = f"changes={json.dumps({book: old})}"
    assert main([*words, "construction=hebbian", "--overwrite"]) == 0
    assert "note: no fact has another value than before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["changes={Emma: Jane Austen}", "options={h: 1}"], "allow_partial"),
        (["changes={Emma: Jane Austen}", "options={keys: 1}"], "keys"),
        (["changes={Emma: Jane Austen}", "options={seed: 1}"], "seed"),
        (["changes={Emma: Jane Austen}", "options={inplace: false}"], "inplace"),
        (["changes={Emma: Nobody}"], "Nobody"),
        (["changes={Emma: Jane Austen}", "file=other.csv"], "disagree about 'Emma'"),
    ],
)
def test_a_refused_swap_leaves_nothing(trained, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.csv").write_text("book,author\nEmma,Mary Shelley\n")
    assert message in _fails(capsys, "swap", f"model={trained}", *words, "output_dir=new")
    assert [path.name for path in tmp_path.iterdir()] == ["other.csv"]


@pytest.mark.parametrize("place", ["/etc/passwd", "/proc/1/new", "/dev/full", "{run}", "{run}/model"])
def test_a_swap_goes_into_a_folder_of_its_own(trained, capsys, place):
    """Not over a file, not where nothing can be written, not into the run that it reads, even with --overwrite."""
    before = sorted(trained.rglob("*"))
    words = ["swap", f"model={trained}", "changes={Emma: Jane Austen}", "construction=hebbian"]
    for flags in ([], ["--overwrite"]):
        message = _fails(capsys, *words, f"output_dir={place.format(run=trained)}", *flags)
        assert "output_dir" in message
    assert sorted(trained.rglob("*")) == before


def test_ask_gives_the_best_answers_and_can_be_strict(trained, capsys):
    assert main(["ask", "The writer of Emma is", f"model={trained}", "top=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("logit ") for line in lines)
    assert "tokens" in _fails(capsys, "ask", "The " * 300, f"model={trained}")
    assert "zyx" in _fails(capsys, "ask", "The zyx of Emma is", f"model={trained}", "strict=true")


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize(
    "prompt", ["a = b", "What ${a} b", "\\${oc.env:HOME}", "[1, 2]", "null", "1e3", "- x: {y}", 'say "x"', "# no", "a\\"]
)  # fmt: skip
def test_a_prompt_is_text(monkeypatch, prompt, bare):
    """Neither YAML nor interpolation, whichever way it is given."""
    from mlpswap.commands import ask

    seen = []
    monkeypatch.setattr(ask, "ask", lambda config, **_: seen.append(config.prompt))
    assert main(["ask", "model=x", prompt if bare else f"prompt={prompt}"]) == 0
    assert seen == [prompt]


@pytest.mark.parametrize("words", [["books_tiny"], ["--config", "books_tiny"], ["file=books_tiny"]])
def test_validate_takes_its_file_either_way(capsys, words):
    assert main(["validate", *words]) == 0
    assert capsys.readouterr().out.strip().endswith("books_tiny.yaml: a valid train configuration")


@pytest.mark.parametrize(
    "text", ["seed: " + 5001 * "1", "seed: " + 5001 * "[", "seed: !!python/object:os.system x", "a: b: c"]
)
def test_validate_refuses_what_yaml_cannot_hold(capsys, tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert "bad.yaml: " in _fails(capsys, "validate", str(path))


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["list", "presets"], ["train", "--help"]])
def test_a_reader_that_stops_reading_is_no_error(words, unbuffered):
    """As in `mlpswap list presets | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mlpswap.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), error) == (141, b"")


def test_the_module_runs_without_a_launcher(tmp_path):
    """`python -m mlpswap.train` is what accelerate starts; a mistake must not print a traceback there either."""
    done = subprocess.run(
        [sys.executable, "-m", "mlpswap.train", "training.stepz=3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["report", "validate", "swap", "train"])
def test_a_name_that_the_system_does_not_take_is_one_sentence(tmp_path, monkeypatch, capsys, verb):
    monkeypatch.chdir(tmp_path)
    long = "x" * 300
    words = {
        "report": [long],
        "validate": [f"{long}.yaml"],
        "swap": [f"model={long}", "changes={a: b}"],
        "train": ["--config", f"{long}.yaml"],
    }[verb]
    assert main([verb, *words]) == 2
    error = capsys.readouterr().err.strip()
    assert error.endswith("File name too long")
    assert error.startswith("mlpswap: ")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_nothing_to_resume(tmp_path, capsys):
    """The real reason, and not what the defaults lack."""
    for verb in ("benchmark", "sequential", "train"):
        assert main([verb, "--resume", f"output_dir={tmp_path / 'gone'}"]) == 2
        assert "gone holds no run to resume" in capsys.readouterr().err


def test_a_mistake_with_line_breaks_still_gets_one_line(capsys, tmp_path):
    path = tmp_path / "contest.yaml"
    path.write_text('editors: [{name: "ro\\nme"}]\n')
    assert main(["validate", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert r"no editor 'ro\nme'" in line
