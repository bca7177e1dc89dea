"""Who wins, in a sentence that follows from the numbers alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlpswap.benchmark.ties import tolerance
from mlpswap.report.formats import accuracy, listed

SWAP = "swap"


@dataclass(frozen=True)
class Standing:
    """`winners` are the editors that `mlpswap.benchmark.ties` does not tell apart; several of them tie."""

    scores: dict[str, float]
    winners: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Names the winner, or the tie, and where `swap` stands."""
        if not self.scores:
            return "no editor has a score."
        if len(self.scores) == 1:
            return (
                f"only {self._with_score(self.winners[0])} was scored: there is nothing to compare it with."
            )
        behind = [name for name in self.scores if name not in self.winners]
        if len(self.winners) > 1:
            text = f"{listed([self._with_score(name) for name in self.winners])} tie"
        elif self.winners[0] == SWAP or SWAP not in self.scores:
            text = f"{self._with_score(self.winners[0])} wins"
        else:
            text = f"{self._with_score(self.winners[0])} beats {self._with_score(SWAP)}"
            behind.remove(SWAP)
        if SWAP in behind:
            text += f" and beat {self._with_score(SWAP)}"
            behind.remove(SWAP)
        return (
            f"{text}; then {listed([self._with_score(name) for name in behind])}." if behind else f"{text}."
        )

    def _with_score(self, name: str) -> str:
        return f"{name} ({accuracy(self.scores[name])})"


def stand(scores: Mapping[str, float | None], facts: int) -> Standing:
    """Rank editors by harmonic score over `facts` altered facts; those without a score do not take part."""
    ranked = sorted(
        ((score, name) for name, score in scores.items() if score is not None), key=lambda pair: -pair[0]
    )
    winners = tuple(name for score, name in ranked if score > ranked[0][0] - tolerance(facts))
    return Standing({name: score for score, name in ranked}, winners)


def overall(standings: Sequence[Standing]) -> str:
    """One sentence over all splits."""
    decided = [each for each in standings if len(each.scores) > 1]
    if not decided:
        return "There is nothing to compare: fewer than two editors were scored."
    alone = Counter(each.winners[0] for each in decided if len(each.winners) == 1)
    ties = len(decided) - alone.total()
    count = len(decided)
    if ties == count:
        same = len({frozenset(each.winners) for each in decided}) == 1
        who = f"{listed(sorted(decided[0].winners))} tie" if same else "the best ones tie"
        return f"No editor wins: {who}{'' if count == 1 else ' at every share of altered facts'}."
    if ties == 0 and len(alone) == 1:
        winner = next(iter(alone))
        versus = (
            f", and beats {SWAP}" if winner != SWAP and all(SWAP in each.scores for each in decided) else ""
        )
        return f"{winner} wins{'' if count == 1 else f' at every one of {count} shares of altered facts'}{versus}."
    parts = [
        f"{name} wins at {wins} of {count} shares of altered facts" for name, wins in alone.most_common()
    ]
    rest = {0: "", 1: "; one is a tie"}.get(ties, f"; {ties} are ties")
    return f"{listed(parts)}{rest}."
