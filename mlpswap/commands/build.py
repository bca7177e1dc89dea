"""`mlpswap build`: a fact MLP on random spherical embeddings, and what it stores."""

from typing import Any

from mlpswap.commands.config import BuildConfig


def build(config: BuildConfig, **_: Any) -> None:
    import torch

    from mlpswap.constructions import build_fact_mlp
    from mlpswap.embeddings import spherical
    from mlpswap.randomness import generator
    from mlpswap.training.config import construction_and_options
    from mlpswap.training.setup import read_facts

    facts = read_facts(config.facts, "books", config.seed)
    d, h, rows = config.n_embd, config.mlp.get("h"), len(facts) + len(facts.values)
    h = h if isinstance(h, int) else 0
    # Asked for at once, so that the allocator refuses now what would otherwise fill the memory piece by piece.
    torch.empty(min(8 * (rows * d + 3 * h * d + len(facts) * h), 2**62), dtype=torch.uint8)
    draw = generator(config.seed, "embeddings")
    keys = spherical(len(facts), d, generator=draw)
    values = spherical(len(facts.values), d, generator=draw)
    name, options = construction_and_options(config.mlp)
    mlp = build_fact_mlp(
        keys, values, facts.targets(), name, generator=generator(config.seed, "fact mlp"), **options
    )
    report = mlp.report
    assert report is not None
    print(f"construction  {report.construction} ({mlp.config.kind}, d = {mlp.config.d}, h = {mlp.config.h})")
    print(f"facts         {report.facts}, {len(facts.values)} values")
    print(f"accuracy      {report.accuracy:.4f} ({len(report.wrong)} wrong)")
    print(f"margin        {report.margin:.4g}, the smallest over all facts")
    print(f"parameters    {report.parameters}")
    print(f"seconds       {report.seconds:.2f}")
