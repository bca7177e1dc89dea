"""Progress and time left, the same in every command."""

import sys
from typing import Any

from tqdm import tqdm


class ProgressBar(tqdm):
    """A bar on stderr: redrawn often at a terminal, seldom in a log file.

    The time left follows from the mean pace of this run, because the settings of one run may differ a thousandfold. What an
    earlier part of the run did counts as done, but not as pace.
    """

    def __init__(self, *arguments: Any, **options: Any):
        often = 0.1 if sys.stderr.isatty() else 10.0
        super().__init__(*arguments, smoothing=0, dynamic_ncols=True, mininterval=often, **options)

    def skip(self, count: int = 1) -> None:
        """Count steps that are known from an earlier part of the run."""
        if not self.disable:
            self.initial += count
            self.update(count)

    def name(self, what: str) -> None:
        """Say at once what is being done."""
        self.set_postfix_str(what)
