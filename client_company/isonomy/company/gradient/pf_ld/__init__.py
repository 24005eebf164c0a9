"""PF-LD, the private and fair Lagrangian dual, and F-LD, its twin without privacy.

`pf_ld.PFLD` and `f_ld.FLD` are strategies for `training.Trainer`. The dual step itself is in
common.privacy.dual, because the regulator computes it too.
"""
