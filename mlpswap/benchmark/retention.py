"""The words of a sequence of batches: what is measured after each, and when a model counts as collapsed."""

from collections.abc import Mapping
from typing import Any

LOCAL = 2048  # rows on which distributions are compared: preserved prompts, and tokens that are no values

DEFINITIONS: dict[str, str] = {
    "immediate_efficacy": "efficacy of a batch's own edits, scored right after that batch",
    "immediate_paraphrase": "paraphrase of a batch's own edits, scored right after that batch",
    "retained_efficacy": "efficacy of all edits so far, scored now; a later edit of a fact replaces the earlier one",
    "retained_paraphrase": "paraphrase of all edits so far, scored now",
    "agreement": "share of preserved facts whose edit prompt is answered as the unedited model answers it, right or wrong",
    "kl": f"mean KL(unedited || edited) of the next token there, in nats, on at most {LOCAL} of these prompts",
    "agreement_language": f"agreement on at most {LOCAL} tokens that are no values",
    "kl_language": "kl on the same tokens",
    "specificity_change_by_distance": "specificity less that of the unedited model, for quarters of the preserved facts: "
    "from those whose keys are farthest (by cosine) from any edited key to the nearest",
    "weight_change": "||W_t - W_0|| / ||W_0|| of the down-projection, Frobenius norm",
    "null_dimension": "AlphaEdit's q: directions in which it may write",
    "cache_rank": "rank of the summed outer products of all keys edited so far, which the editor carries along",
}

# A model beyond one of these has been ruined rather than edited.
LEAST_SPECIFICITY, MOST_NONFACT_CE = 0.5, 1.5
COLLAPSE = (
    f"a model counts as collapsed once its specificity is below {LEAST_SPECIFICITY}, or the cross-entropy of its other tokens "
    f"above {MOST_NONFACT_CE} times that of the unedited model"
)


def collapse(row: Mapping[str, Any]) -> str | None:
    """By which of the two limits the model has collapsed, or None."""
    specificity, ratio = row["specificity"], row["nonfact_ce_ratio"]
    if specificity < LEAST_SPECIFICITY:  # never true of NaN: nothing is preserved
        return f"specificity {specificity:.3f} is below {LEAST_SPECIFICITY}"
    if not ratio <= MOST_NONFACT_CE:
        return f"the cross-entropy of other tokens is {ratio:.3g} times that of the unedited model, above {MOST_NONFACT_CE}"
    return None


def finals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each editor's last measured row. Where batches are independent, that of the last batch."""
    last = {row["editor"]: row for row in rows if not row["error"]}
    return list(last.values())
