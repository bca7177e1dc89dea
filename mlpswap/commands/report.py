"""`mlpswap report`: write report.html of a run folder again."""

from pathlib import Path
from typing import Any

from mlpswap.commands.config import ReportConfig
from mlpswap.errors import ConfigError


def report(config: ReportConfig, **_: Any) -> None:
    from mlpswap.report import write_report

    folder = Path(str(config.run))
    if not (folder / "results.json").is_file():
        raise ConfigError(f"run = {folder}: expected the folder of a finished run (no results.json)")
    write_report(folder)
    print(folder / "report.html")
