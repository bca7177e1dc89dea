"""The two tasks of arXiv 2512.00207: SSFR and author-of-book sentences."""

from mlpswap.tasks.base import Batch, SampleOrder, Task, TemplateTable
from mlpswap.tasks.books import books_task
from mlpswap.tasks.ssfr import ssfr_task

__all__ = ["Batch", "SampleOrder", "Task", "TemplateTable", "books_task", "ssfr_task"]
