"""Other people's methods, for comparison only: none of them is a protocol of this product.

| strategy | who must see what | private? |
|---|---|---|
| `exponentiated_gradient` | the trainer sees true attributes | no |
| `linear_post` | the trainer sees true attributes | no |
| `threshold_optimizer` | trainer *and every decision* see true attributes | no |
| `zafar` | the trainer sees true attributes | no |
| `_randomised_response` | the trainer sees randomised attributes | ε per attribute, in the ledger |
| `dp_sgd_penalty`, `raco_dp` | the trainer sees all there is | (ε, δ) for outsiders |
"""
