"""The papers side by side: a list of experiments, run once, drawn as often as you like.

| module | holds |
|---|---|
| `cells` | what is run: experiments from a list, unfolded to cells; a cell's key |
| `store` | finished cells on disk, one line each, safe against interruption |
| `runner` | cells over processes |
| `methods` | names, colours and marks, the same in every figure |
| `_published` | points and tables of the papers |
| `_summary` | means and fronts |
| `comparison` | tilt beside each rival: paired intervals, a word |
| `_tables` | the same as Markdown |
| `_figures` | pictures, drawn with `common/figures` |
| `output` | everything of a folder: table, figures, Markdown |
"""
