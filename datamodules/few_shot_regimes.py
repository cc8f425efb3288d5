"""Regimes of few-shot tasks: who annotates the support sets of target tasks. Imports no torch."""

from __future__ import annotations

#: target tasks with simulated annotators
SIMULATED: dict[str, str] = {
    "hammer-spammer": "experts, hammers and a share of spammers, who answer anything (the paper's)",
    "pair-flippers": "experts, hammers and a share who take each class for one certain other in half of the cases",
    "class-spammers": "experts, hammers and a share who answer one class of their own, whatever is true",
}
#: target items that people annotated
CROWD_REGIME: dict[str, str] = {"crowd": "the answers that people really gave to the target items"}
