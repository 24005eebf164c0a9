"""The papers side by side: a list of experiments, run once, drawn as often as you like.

| module | holds |
|---|---|
| `cells` | what is run: experiments from a list, unfolded to cells; a cell's key |
| `store` | finished cells on disk, one line each, safe against interruption |
| `runner` | cells over processes |
| `outcome` | one cell: rehearse and measure |
| `methods` | names, colours and marks, the same in every figure |
| `published` | points and tables of the papers |
| `summary` | means, fronts, dominance, paired tests |
| `tables` | the same as Markdown |
| `figures` | pictures, drawn with `rehearsal.panels` |
| `output` | everything of a folder: table, figures, Markdown |
"""
