"""The exam that every construction and every editor takes, built in or from a plug-in:

    pytest --pyargs mlpswap.testing --editor NAME --construction NAME

Each option may be given several times; without any, everything registered is examined. It needs pytest and nothing else.
An entry is examined on what its `example(generator)` offers. Beyond that, a test in which it says clearly that something
is infeasible or unsupported is skipped with that sentence.
"""
