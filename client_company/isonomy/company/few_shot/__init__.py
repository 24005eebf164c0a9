"""Few-shot collaboration on the company's side (docs/few-shot.md).

Public face: `federated` (take part in a real run), `model` (save, load and adapt a trained
initialisation) and `_rehearse` (both sides in one process). `_data` splits image sets between the
parties, `_variants` turns a budget into noise, `experiments` and `report` reproduce the paper's
tables and figures. `isonomy few-shot` enters here; nothing below imports this room.
"""
