"""What the papers assert, tested on the results. No verdict is written by hand.

The unit is the seed: within a seed the columns are averaged first, so n is the number of seeds in which every
cell that the claim needs is done. A column's prefix goes before the metric's name there. Each kind of test turns a
seed into one number, its effect:

=====================  ==============================================================================
``paired_difference``  how much better the first side is than the second (by the metric's direction)
``equivalence``        the same difference
``non_inferiority``    the same difference
``trend``              least-squares change of the metric per column, in the claimed direction
``correlation``        Spearman's correlation over epochs of two curves, minus the reference
``gain_correlation``   Spearman's correlation over items: how much lower the first side's array is than the
                       second's, with another array of the items
``gain_difference``    how much more a row gains over another in some columns than in others
``value``              how far a metric is above the reference
``above_pairs``        how far a metric is above the mean probe of the pairs of trained models that hold the seed
``equals``             how far a metric is from the constant
=====================  ==============================================================================

Rules, with Student's t intervals over seeds:

For ``correlation`` the interval is the wider of that and Fisher's for a single run's epochs, because rank
correlations of few epochs agree between seeds to the last digit without meaning anything. For ``gain_correlation``
seeds are the unit although a seed has thousands of items: all of them are scored by the same two trained networks,
so they are not independent of each other, and an interval over items would be far too narrow.

- *shown*: the 95 % interval of the mean effect lies above 0. Equivalence and equality: both one-sided tests have
  p < 0.05 (TOST), that is, the 90 % interval lies within the margin. Non-inferiority: the one-sided test against
  minus the margin has p < 0.05, that is, the lower end of the 90 % interval is above it.
- *contradicted*: the 95 % interval lies below 0. Equivalence and equality: the 95 % interval lies outside the margin.
  Non-inferiority: the upper end of the 90 % interval is below minus the margin.
- *not shown*: anything between.
  Where all seeds have the very same effect, no spread is known and the signs decide (Wilcoxon's exact test, which
  needs six seeds for p < 0.05, or five in a one-sided test).
  Where the first side is one realisation (data as published) and only the second is drawn anew in each seed, seeds
  repeat the first side's luck: the interval is then the prediction interval for one more draw of the second side.
- *not testable here*: fewer than two seeds have an effect; the reason says why.

p-values are two-sided (TOST's for equivalence and equality, one-sided for non-inferiority) and stand beside their Holm
adjustment over all claims of a paper under one profile; the verdict is each claim's own.
"""

from __future__ import annotations

from benchmark.claims.evaluate import Verdict, described, evaluate_claims
from benchmark.claims.render import claim_notes, to_json, to_markdown, write_claims

__all__ = ["Verdict", "claim_notes", "described", "evaluate_claims", "to_json", "to_markdown", "write_claims"]
