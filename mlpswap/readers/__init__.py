"""Strict readers of fact files: any CSV file with two named columns, and the UCSD Goodreads Book Graph.

Nothing is lost silently: each reader returns the facts and a `ReadReport` that accounts for every row. Keys
and values keep their exact text; "NA" and "None" are text like any other.
"""

from mlpswap.readers.collector import OnConflict, ReadReport
from mlpswap.readers.csv_file import Policy, read_csv
from mlpswap.readers.goodreads import read_goodreads

__all__ = ["OnConflict", "Policy", "ReadReport", "read_csv", "read_goodreads"]
