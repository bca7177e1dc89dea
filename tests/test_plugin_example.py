"""A plug-in as its author has it: installed by pip, listed, run in a benchmark, examined. And plug-ins with faults."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent

# Each faulty plug-in of tests/faulty_plug_ins.py, and tests of the exam that must notice it.
FAULTS = {
    "in_place": ("test_is_pure",),
    "chance": ("test_is_pure", "test_edits_are_independent_and_reproducible"),
    "remembers": ("test_edits_are_independent_and_reproducible",),
    "silent": ("test_diagnostics_account_for_every_request", "test_repeated_and_contradictory_requests"),
    "weak": ("test_each_edit_is_made_and_undone",),
    "terse": ("test_every_option_has_help_and_a_default",),
    "rough": ("test_odd_values_are_refused_in_words_or_taken",),
    "fails": ("test_runs_in_the_benchmark",),
    "boasts": ("test_report_is_what_the_module_does",),
    "careless": ("test_arguments_and_global_randomness_are_left_alone", "test_equal_generators_give_equal_weights"),
}  # fmt: skip
CONSTRUCTIONS = ("boasts", "careless")

ENTRY_POINTS = """
[mlpswap.editors]
in_place = faulty_plug_ins:InPlace
chance = faulty_plug_ins:Chance
remembers = faulty_plug_ins:Remembers
silent = faulty_plug_ins:Silent
weak = faulty_plug_ins:Weak
terse = faulty_plug_ins:Terse
rough = faulty_plug_ins:Rough
fails = faulty_plug_ins:Fails
lost = no_such_module:Lost
absent = faulty_plug_ins:Absent
poor = collections:OrderedDict
memit = faulty_plug_ins:InPlace

[mlpswap.constructions]
boasts = faulty_plug_ins:Boasts
careless = faulty_plug_ins:Careless
hebbian = faulty_plug_ins:Boasts
"""

# Everything in one process, since each imports torch.
SESSION = """
import sys
from pathlib import Path
import pytest
from mlpswap.cli import main

def exam(name, *options):
    code = pytest.main(["--pyargs", "mlpswap.testing", "-p", "no:cacheprovider", f"--junitxml={name}.xml", *options])
    Path(f"{name}.code").write_text(str(int(code)))

host, selected, *names = sys.argv[1:]
for what in ("editors", "constructions"):
    main(["list", what])
main(["benchmark", f"model={host}", "output_dir=run", "splits=[{altered: 3}]", "report=false",
      "editors=[{name: nudge, steps: 100, lr: 0.5}, {name: swap, construction: random_features}]"])
exam("example", "--editor", "nudge", "--construction", "random_features")
exam("faulty", *names, "-k", selected)
exam("unknown", "--editor", "nudgee")
exam("broken", "--editor", "lost")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, trained):
    """The working directory after the session above, with what it printed in `out`."""
    folder = tmp_path_factory.mktemp("plug_in")
    shutil.copytree(HERE / "plugin_example", folder / "source")
    pip = [
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        "site",
        "./source",
    ]
    subprocess.run([sys.executable, "-m", *pip], cwd=folder, check=True, capture_output=True)
    shutil.copy(HERE / "faulty_plug_ins.py", folder / "site")
    faulty = folder / "site" / "faulty-1.0.dist-info"
    faulty.mkdir()
    (faulty / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (faulty / "entry_points.txt").write_text(ENTRY_POINTS)
    selected = " or ".join(f"({name} and {test})" for name, tests in FAULTS.items() for test in tests)
    names = [f"--{'construction' if name in CONSTRUCTIONS else 'editor'}={name}" for name in FAULTS]
    done = subprocess.run(
        [sys.executable, "-c", SESSION, trained, selected, *names],
        cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(folder / "site")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "out").write_text(done.stdout)
    return folder


def outcomes(path):
    """Test case -> failed."""
    cases = ElementTree.parse(path).iter("testcase")
    return {
        case.get("name"): case.find("failure") is not None or case.find("error") is not None for case in cases
    }


def test_it_is_listed_and_runs_in_a_benchmark(folder):
    out = (folder / "out").read_text()
    assert "nudge        [plugin, my-package 1.0] Writes each wanted output R at its own key" in out
    assert "random_features [plugin, my-package 1.0] Random ReLU features" in out
    rows = json.loads((folder / "run/results.json").read_text())["rows"]
    assert {row["editor"] for row in rows} == {"nudge", "swap"}
    assert not any(row["error"] for row in rows)


def test_it_passes_the_exam(folder):
    found = outcomes(folder / "example.xml")
    assert (folder / "example.code").read_text() == "0"
    assert len(found) > 40
    assert not any(found.values())
    names = {name.partition("[")[2].rstrip("]") for name in found}
    assert not {"memit", "hebbian", "editor-memit"} & names


def test_the_exam_notices_every_fault(folder):
    found = outcomes(folder / "faulty.xml")
    unnoticed = [name for name, failed in found.items() if not failed]
    assert not unnoticed
    noticed = {
        (name.rstrip("]").rpartition("[")[2].rpartition("-")[2], name.partition("[")[0]) for name in found
    }
    assert noticed == {(name, test) for name, tests in FAULTS.items() for test in tests}


def test_broken_plug_ins_are_listed_as_broken_and_take_no_name(folder):
    out = (folder / "out").read_text()
    for name, reason in (
        ("lost", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("absent", "AttributeError"),
        ("poor", "lacks name, Config, edit"),
    ):
        (line,) = (line for line in out.splitlines() if line.startswith(f"{name} "))
        assert "[plugin, faulty 1.0] BROKEN: " in line
        assert reason in line
    assert out.count("(faulty offers the same name and is ignored)") == 2
    for name in ("memit", "hebbian"):
        (line,) = (line for line in out.splitlines() if line.startswith(f"{name} "))
        assert "[built-in, mlpswap" in line


@pytest.mark.parametrize(
    ("exam", "text"), [("unknown", "did you mean 'nudge'"), ("broken", "no_such_module")]
)
def test_who_cannot_be_examined_is_told_in_a_sentence(folder, exam, text):
    assert (folder / f"{exam}.code").read_text() != "0"
    assert text in (folder / "out").read_text()


def test_the_readme_shows_the_editor_of_the_example():
    """Word for word, so that what is shown is what is examined."""
    readme = (HERE.parent / "README.md").read_text(encoding="utf-8")
    source = (HERE / "plugin_example/my_package.py").read_text()
    (snippet,) = (part.split("```")[0] for part in readme.split("```python\n") if "class Nudge" in part)
    assert snippet[snippet.index("class Nudge") :].strip() in source
