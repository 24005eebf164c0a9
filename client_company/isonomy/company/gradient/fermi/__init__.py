"""DP-FERMI: a torch model under an ERMI penalty, and DP-SGDA, the min-max loop that it comes from.

`fermi` has the strategies; the penalty, the loop and the record-private releases are private
modules. docs/fermi.md explains them and their noise.
"""
