"""Run every editor on every setting, score each on the same prompts, and say which setting was best.

Two rows sum up a grid: `oracle`, the best setting chosen and reported on the same facts, as the sources do; and `selected`,
chosen on one half of the facts and reported on the other.
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mlpswap.benchmark.config import BenchmarkConfig
from mlpswap.benchmark.splits import Split, make_split, requests_of
from mlpswap.config import build_options, load_config, to_plain, to_yaml
from mlpswap.constructions.base import FactMLP
from mlpswap.editing import EditRequest, EditResult, HostAdapter, Prompts, Statistics, statistics_of
from mlpswap.editing.evaluation import (
    CORE,
    PROBES,
    SCORER,
    LanguageCache,
    Probes,
    nonfact_change,
    outcomes,
    patched_fact_mlp,
    scores,
    top,
)
from mlpswap.errors import ConfigError, SingularMomentError
from mlpswap.model import Patch
from mlpswap.randomness import generator
from mlpswap.registry import EDITORS, get
from mlpswap.runs import open_run_folder, progress_interval, results, write_json, write_text
from mlpswap.tasks import Task, books_task
from mlpswap.tasks.books import TRAINED

logger = logging.getLogger(__name__)

PROTOCOL = "single_layer"
ANSWERS = 10  # altered facts in the report's table of answers
LANGUAGE_PROMPTS = 2048  # prompts on which the tokens that are no facts are measured


@dataclass
class Run:
    """Everything that the editors have in common."""

    config: BenchmarkConfig
    folder: Path
    model: Any
    task: Task
    adapter: HostAdapter
    language: LanguageCache
    seconds: dict[str, float] = field(default_factory=dict)

    def clock(self, name: str, began: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def benchmark(
    config: BenchmarkConfig, *, config_name: str | None = None, resume: bool = False, overwrite: bool = False
) -> Path:
    """Train the base if none is given, run all editors, and write rows, predictions, patches and the report."""
    from mlpswap.commands.models import load_host

    began = time.perf_counter()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    editors = [(str(entry["name"]), *settings_of(entry)) for entry in config.editors]  # fails before any work
    folder = Path(
        config.output_dir or Path("runs") / (Path(config_name).stem if config_name else "benchmark")
    )
    open_run_folder(folder, resume=resume, overwrite=overwrite)
    if resume and (folder / "results.json").exists():
        logger.warning("%s is finished; nothing to resume", folder)
        return folder
    write_text(folder / "config.yaml", to_yaml(config))
    base = base_run(config, folder)
    trained = time.perf_counter()
    model = load_host(base)
    task = the_task(model)
    adapter = HostAdapter(model)
    splits = [  # fails before any work
        make_split(task, each["altered"], each.get("preserved"), config.seed, derange=config.derange)
        for each in config.splits
    ]
    run = Run(config, folder, model, task, adapter, language_cache(model, task, config.seed))
    run.seconds |= {"base": trained - began, "collect": time.perf_counter() - trained}
    rows: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    with (folder / "predictions.jsonl").open("w", encoding="utf-8") as predictions:
        total = len(config.splits) * sum(len(settings) for _, _, settings in editors)
        with tqdm(
            total=total, unit="setting", desc="editing", dynamic_ncols=True, mininterval=progress_interval()
        ) as bar:
            for split in splits:
                found, answers = run_split(run, split, editors, predictions, bar)
                rows += found
    content = results(
        "benchmark", to_plain(config), headline(rows), rows, time.perf_counter() - began,
        base=_read_json(base / "results.json"),
        base_metrics=_read_lines(base / "metrics.jsonl"),
        regime=regime(model),
        answers=answers,
        notes=sorted({note for row in rows for note in row["notes"]}),
        stages=run.seconds,
    )  # fmt: skip
    write_json(folder / "results.json", content)
    print_table(rows)
    print(f"run folder: {folder}")
    if config.report:
        from mlpswap.report import write_report

        write_report(folder)
        print(f"report: {folder / 'report.html'}")
    return folder


def settings_of(entry: dict[str, Any]) -> tuple[Any, list[Any]]:
    """(editor, its settings): one from the options in the configuration, or the published grid."""
    name = str(entry["name"])
    editor = get(EDITORS, name)
    where = f"editor {name}"
    if "grid" in entry:
        if not hasattr(editor, "grid"):
            raise ConfigError(f"{where} has no grid; give its options instead")
        return editor, [
            build_options(editor.Config, point, where) for point in editor.grid(str(entry["grid"]))
        ]
    options = {key: value for key, value in entry.items() if key != "name"}
    return editor, [build_options(editor.Config, options, where)]


def base_run(config: BenchmarkConfig, folder: Path) -> Path:
    """The folder of the host to edit; trains `base` with this run's seed into `base/` where no model is given."""
    if config.model is not None:
        return Path(config.model)
    from mlpswap.train import train
    from mlpswap.training.config import TrainConfig

    base = folder / "base"
    overrides = [f"seed={config.seed}", f"output_dir={json.dumps(str(base))}"]
    if config.threads is not None:
        overrides.append(f"threads={config.threads}")
    options = load_config(TrainConfig, config.base, overrides)
    return train(options, config_name=config.base, resume=(base / "config.yaml").exists())


def the_task(model: Any) -> Task:
    """The books task of a saved host. Raises `ConfigError` for a host that was trained on anything else."""
    if model.vocabulary.bos_id is None:
        raise ConfigError("the benchmark edits sentences: the model is a host of SSFR, which has none")
    task = books_task(model.facts)
    if task.vocabulary.entries != model.vocabulary.entries:
        raise ConfigError("the model's vocabulary is not that of the packaged templates")
    return task


def language_cache(model: Any, task: Task, seed: int) -> LanguageCache:
    """A sample of prompts on which the cross-entropy of the other tokens is compared."""
    draw = generator(seed, "language prompts")
    samples = torch.randperm(task.population, generator=draw)[:LANGUAGE_PROMPTS]
    fact, template = task.pairs(samples)
    batch = task.batch(fact, template, targets=task.target_ids(task.facts))
    return LanguageCache.of(model, batch, task.key_ids)


def regime(model: Any) -> dict[str, Any]:
    """How tight the base is: with h at or above the number of facts, one linear solve edits any of them."""
    shape, facts = model.fact_mlp.config, len(model.facts)
    return {"facts": facts, "d": shape.d, "h": shape.h, "kind": shape.kind, "loose": shape.h >= facts}


def run_split(
    run: Run, split: Split, editors: Sequence[tuple[str, Any, list[Any]]], predictions: Any, bar: tqdm
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All editors on one split: rows of the grid with oracle and selected rows, and answers of the best settings."""
    began = time.perf_counter()
    model, task, adapter = run.model, run.task, run.adapter
    groups = {
        "altered": split.altered, "preserved": split.preserved, "edit_template": split.edit_template
    }  # fmt: skip
    probes = Probes.of(model, task, split.after, **groups, names=PROBES)
    requests = requests_of(adapter, task, split, [text.rsplit(" ", 1)[0] for text in TRAINED])
    statistics = statistics_of(adapter, preserved_prompts(task, split)) if len(split.preserved) else None
    run.clock("collect", began)
    rows: list[dict[str, Any]] = []
    best_mlps: dict[str, FactMLP] = {}
    for name, editor, settings in editors:
        began = time.perf_counter()
        best: dict[str, tuple[float, dict[str, Any], Patch]] = {}
        settings = [with_ridge(config, statistics) for config in settings]
        for config, result, seconds in edits(run, editor, settings, requests, statistics, split):
            row, half = score(run, split, probes, name, config, result, seconds)
            rows.append(row)
            for kind, value in (("oracle", row["score_harmonic"]), ("selected", half)):
                value = -1.0 if math.isnan(value) else value
                if kind not in best or value > best[kind][0]:
                    best[kind] = (value, row, result.patch)
            bar.update()
        for kind, (_, row, patch) in best.items():
            mlp = patched_fact_mlp(model, patch)
            among = split.reported if kind == "selected" else None
            rows.append(close_up(run, probes, row, mlp, kind, among))
        best_mlps[name] = patched_fact_mlp(model, best["oracle"][2])
        save_patch(run, split, name, best["oracle"][2])
        run.clock(name, began)
    return rows, show_answers(run, split, probes, best_mlps, predictions)


def with_ridge(config: Any, statistics: Statistics | None) -> Any:
    """The same setting with a ridge where it would refuse a singular second moment; the row's setting shows it."""
    if getattr(config, "on_singular", None) != "error" or statistics is None:
        return config
    try:
        for moment in statistics.values():
            moment.factor("error")
    except SingularMomentError:
        return replace(config, on_singular="ridge")
    return config


def preserved_prompts(task: Task, split: Split) -> Prompts:
    """The preserved facts' edit prompts, whose keys make the second moment."""
    facts = split.preserved
    batch = task.batch(facts, split.edit_template[facts], targets=task.target_ids(task.facts))
    return Prompts(batch.input_ids, batch.attention_mask)


def edit_generator(run: Run, split: Split) -> torch.Generator:
    """The same draws for every editor and setting."""
    return generator(run.config.seed, "edit", len(split.altered))


def edits(
    run: Run,
    editor: Any,
    settings: Sequence[Any],
    requests: Sequence[EditRequest],
    statistics: Statistics | None,
    split: Split,
) -> Iterator[tuple[Any, EditResult, float]]:
    """(setting, result, seconds) one by one; editors that can share work between settings do."""
    if hasattr(editor, "edit_grid"):
        stream = editor.edit_grid(
            run.adapter, requests, settings, statistics=statistics, generator=edit_generator(run, split)
        )
    else:
        stream = (
            editor.edit(
                run.adapter, requests, config, statistics=statistics, generator=edit_generator(run, split)
            )
            for config in settings
        )
    for config in settings:
        began = time.perf_counter()
        result = next(stream)
        yield config, result, time.perf_counter() - began


def score(
    run: Run, split: Split, probes: Probes, name: str, config: Any, result: EditResult, seconds: float
) -> tuple[dict[str, Any], float]:
    """The row of one setting, and its score on the half of the facts that settings are selected on."""
    found = outcomes(run.model, patched_fact_mlp(run.model, result.patch), probes)
    every = scores(probes, found)
    row = {
        "editor": name,
        "setting": to_plain(config),
        "protocol": PROTOCOL,
        "scorer": SCORER,
        "seed": run.config.seed,
        "altered": len(split.altered),
        "preserved": len(split.preserved),
        "unchanged": split.unchanged,
        **dict.fromkeys(PROBES),
        **every,
        **dict.fromkeys(("nonfact_ce_ratio", "nonfact_word_ce_ratio", "nonfact_ppl_ratio")),
        "seconds": seconds,
        "selection": "grid",
        "notes": list(result.diagnostics.get("notes", [])),
    }
    return row, scores(probes, found, split.chosen)["score_harmonic"]


def close_up(
    run: Run,
    probes: Probes,
    row: dict[str, Any],
    mlp: FactMLP,
    selection: str,
    among: torch.Tensor | None,
) -> dict[str, Any]:
    """The row of the best setting with everything measured; on the facts `among` only, if given."""
    measured = scores(probes, outcomes(run.model, mlp, probes, PROBES), among)
    change = nonfact_change(run.model, run.model.fact_mlp, mlp, run.language)
    return row | measured | change | {"selection": selection}


def save_patch(run: Run, split: Split, name: str, patch: Patch) -> None:
    folder = run.folder / "patches"
    folder.mkdir(exist_ok=True)
    if not patch.is_empty:
        patch.save(folder / f"{name}_{len(split.altered)}.safetensors")


def show_answers(
    run: Run, split: Split, probes: Probes, mlps: dict[str, Any], predictions: Any
) -> list[dict[str, Any]]:
    """Answers of each editor's best setting, for the report; the top five of each go to `predictions.jsonl`."""
    entries = run.task.vocabulary.entries
    shown = []
    for kind, probe in (("altered", "efficacy"), ("preserved", "specificity")):
        cache = probes.caches[probe][slice(0, run.config.predictions)]
        best = {name: top(run.model, mlp, cache)[0].tolist() for name, mlp in mlps.items()}
        for place, fact in enumerate(cache.facts.tolist()):
            key = run.task.facts.keys[fact]
            prompt = TRAINED[int(split.edit_template[fact])].rsplit(" ", 1)[0].replace("{book}", key)
            old, wanted = run.task.facts.value_of(key), entries[int(cache.wanted[place])][1]
            for name in mlps:
                five = [entries[token][1] for token in best[name][place]]
                line = {"editor": name, "altered": len(split.altered), "kind": kind, "prompt": prompt,
                        "wanted": wanted, "top": five}  # fmt: skip
                predictions.write(json.dumps(line, ensure_ascii=False) + "\n")
            says = {name: entries[best[name][place][0]][1] for name in mlps}
            shown.append(
                {"kind": kind, "prompt": prompt, "key": key, "old": old, "wanted": wanted, "by_editor": says}
            )
    return [line for line in shown if line["kind"] == "altered"][:ANSWERS] + [
        line for line in shown if line["kind"] == "preserved"
    ][: ANSWERS // 2]


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The harmonic score of each editor's oracle row, by share: what a table of runs would hold."""
    return {
        f"{row['editor']}_score_harmonic_{row['altered']}": row["score_harmonic"]
        for row in rows
        if row["selection"] == "oracle"
    }


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """The best setting of each editor, for whoever stands at the terminal."""
    print(f"{'editor':10} {'altered':>7} {'efficacy':>9} {'paraphr.':>9} {'specific.':>9} {'harmonic':>9} "
          f"{'non-fact':>9} {'selected':>9}")  # fmt: skip
    halves = {(r["editor"], r["altered"]): r["score_harmonic"] for r in rows if r["selection"] == "selected"}
    for row in rows:
        if row["selection"] == "oracle":
            numbers = [row[name] for name in (*CORE, "score_harmonic", "nonfact_ce_ratio")]
            numbers.append(halves[row["editor"], row["altered"]])
            print(f"{row['editor']:10} {row['altered']:7} " + " ".join(f"{_shown(n):>9}" for n in numbers))


def _shown(number: float | None) -> str:
    return "-" if number is None or math.isnan(number) else f"{number:.3f}"


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _read_lines(path: Path) -> list[Any]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
