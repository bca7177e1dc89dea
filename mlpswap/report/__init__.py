"""One self-contained HTML page that tells what a run did: figures, tables, definitions, settings. No script, no network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlpswap.errors import CheckpointError, MlpSwapError, RunFolderError
from mlpswap.runs import read_json, read_lines, replacing, write_text

HERE = Path(__file__).parent


def write_report(folder: Path) -> dict[str, Path]:
    """Write `report.html` into the folder of a finished run, and its figures as PNG into `figures/`.

    Returns the PNG files by the name of the figure. Raises `RunFolderError` if the folder holds no results, or results of
    a kind that has no report, and `CheckpointError` if they are damaged.
    """
    folder = Path(folder)
    path = folder / "results.json"
    if not path.is_file():
        raise RunFolderError(f"{path} is missing: a report needs the folder of a finished run")
    results = read_json(path, kind=str)
    from jinja2 import TemplateError

    try:
        view = _view(results, folder)
        write_text(folder / "report.html", _page(folder.resolve().name, results["kind"], view))
    except MlpSwapError:
        raise
    except (
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, TemplateError
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"{path} cannot be shown, because it is damaged or of another version: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error
    return _write_figures(folder / "figures", view.pictures)


def _view(results: dict[str, Any], folder: Path) -> Any:
    """What the page of this kind of run shows."""
    from mlpswap.report.benchmark import benchmark_view
    from mlpswap.report.cost import cost_view
    from mlpswap.report.sequences import ablation_view, board_view
    from mlpswap.report.sequential import sequential_view
    from mlpswap.report.stores import stores_view
    from mlpswap.report.training import training_view

    match results["kind"]:
        case "train":
            return training_view(results, read_lines(folder / "metrics.jsonl"))
        case "benchmark":
            return benchmark_view(results)
        case "sequential":
            return sequential_view(results)
        case "stores":
            return stores_view(results)
        case "cost":
            return cost_view(results)
        case "sequences":
            return board_view(results, folder)
        case "ablation":
            return ablation_view(results)
        case other:
            raise RunFolderError(
                f"{folder / 'results.json'}: no report for kind '{other}'; "
                "expected train, benchmark, sequential, stores, cost, sequences or ablation"
            )


def _page(name: str, kind: str, view: Any) -> str:
    import yaml
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from mlpswap.report.formats import number, text

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Whatever a run holds, no control or format character reaches the page.
        finalize=lambda value: (
            value if isinstance(value, Markup) or not isinstance(value, str) else text(value)
        ),
    )
    environment.filters["number"] = number
    environment.filters["yaml"] = lambda tree: yaml.safe_dump(
        tree, sort_keys=False, allow_unicode=True, width=10**6
    )
    style = Markup((HERE / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("report.html.j2").render(name=name, kind=kind, view=view, style=style)


def _write_figures(folder: Path, pictures: Sequence[Any]) -> dict[str, Path]:
    files = {picture.name: folder / f"{picture.name}.png" for picture in pictures}
    try:
        folder.mkdir(exist_ok=True)
        for picture in pictures:
            with replacing(files[picture.name]) as temporary:
                temporary.write_bytes(picture.png)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be written: {error.strerror}") from error
    return files
