"""`mlpswap report`: write report.html of a run folder again."""

from pathlib import Path
from typing import Any

from mlpswap.commands.config import ReportConfig
from mlpswap.errors import ConfigError, RunFolderError


def report(config: ReportConfig, **_: Any) -> None:
    from mlpswap.report import write_report

    folder = Path(str(config.run))
    if not (folder / "results.json").is_file():
        raise ConfigError(f"run = {folder}: expected the folder of a finished run (no results.json)")
    try:
        write_report(folder)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise RunFolderError(
            f"{folder / 'results.json'} is damaged, or of another version: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error
    print(folder / "report.html")
