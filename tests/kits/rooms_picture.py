"""Draws docs/images/rooms.svg from the import contracts: `python tests/kits/rooms_picture.py`.

The layers are those that import-linter enforces, so the picture cannot show what the code forbids.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
WIDTH, MARGIN, GAP, ROW, HEAD = 1120, 14, 8, 44, 34
INK, MUTED, LINE = "#1f2933", "#52606d", "#9aa5b1"
COLOURS = {
    "company": ("#e8f1fb", "#3b73af"),
    "regulator": ("#fdf1e3", "#b7791f"),
    "server": ("#eef0f2", "#616e7c"),
    "common": ("#eaf6ee", "#2f7d4f"),
}
SOURCES = {
    "company": "client_company",
    "regulator": "client_regulator",
    "server": "server",
    "common": "common",
}
CAPTIONS = {
    "company/cli": "isonomy, isonomy-company",
    "company/speed": "speed and size",
    "company/demo": "all parties on one machine",
    "company/few_shot": "rehearse, take part, adapt",
    "company/compare": "benchmark, baselines, jagielski",
    "company/rehearsal": "simulate, datasets",
    "company/gradient": "PF-LD, DP-FERMI on torch models",
    "company/fair": "FairClassifier: inputs, tilt, scores, onnx_export",
    "company/federation": "join, plan, align, audit",
    "regulator/cli": "isonomy-regulator",
    "regulator/upkeep": "backup, restore, keys, forget",
    "regulator/console": "pages in a browser",
    "regulator/serving": "daemon, sessions",
    "regulator/report": "signed pages",
    "regulator/plans": "rules for approval",
    "regulator/vault": "attributes, sealed",
    "regulator/config": "home and policy",
    "server/cli": "isonomy-server",
    "server/setup": "home and kits",
    "server/flower": "control plane",
    "server/relay": "data plane, adds sums",
    "server/config": "server.toml",
    "common/few_shot/learning": "learners (torch)",
    "common/few_shot/rounds": "few-shot rounds",
    "common/pooled": "several companies",
    "common/kits": "set-up of a machine, preflight",
    "common/node": "Flower node to daemon",
    "common/alignment": "find the common people",
    "common/inspection": "open and check requests",
    "common/pads": "keys once, then one-time pads",
    "common/remote": "sums through a session",
    "common/report": "audits, intervals, verify",
    "common/session": "streams, links, tickets",
    "common/sums": "oracle, channels, custodian",
    "common/agreements": "plans and approvals",
    "common/wire": "messages and envelopes",
    "common/privacy": "noise, price, accounts, λ",
    "common/crypto": "encryption",
    "common/figures": "pictures as SVG",
    "common/keys": "identity, sealing, TLS",
    "common/ledger": "budget and answers",
    "common/people": "cohorts, groups",
    "common/base": "errors, files, hashes, logs",
}


def layers() -> dict[str, list[list[str]]]:
    """Rooms of each root from the top layer down, as "root/room"."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rows: dict[str, list[list[str]]] = {"common": []}
    for contract in contracts["contracts"]:
        if contract["type"] != "layers":
            continue
        for layer in contract["layers"]:
            names = [name.strip() for name in layer.split("|")]
            if "containers" in contract:
                root = contract["containers"][0].removeprefix("isonomy.")
                rows.setdefault(root, []).append([f"{root}/{name}" for name in names])
            elif names[0].startswith("isonomy.common."):
                rows["common"].append([n.removeprefix("isonomy.").replace(".", "/") for n in names])
    return rows


def draw() -> str:
    """The picture as SVG."""
    rows = layers()
    gradient = rows.pop("company.gradient")
    widths = {"company": 470, "regulator": 360}
    widths["server"] = WIDTH - 2 * MARGIN - 2 * 16 - sum(widths.values())
    top = max(len(rows[root]) for root in widths)
    roles_height = HEAD + top * ROW + GAP
    common_y = MARGIN + roles_height + 26
    common_height = HEAD + len(rows["common"]) * ROW + GAP
    height = common_y + common_height + 30
    body, x = [], MARGIN
    for root, width in widths.items():
        root_height = HEAD + len(rows[root]) * ROW + GAP
        y = MARGIN + roles_height - root_height
        body += _root(root, rows[root], x, y, width, root_height, gradient)
        middle = x + width / 2
        body.append(_arrow(middle, MARGIN + roles_height, common_y))
        x += width + 16
    body += _root("common", rows["common"], MARGIN, common_y, WIDTH - 2 * MARGIN, common_height)
    note = "A room imports rooms below it, never one above or beside it. No role imports another."
    body.append(_text(MARGIN, height - 10, note, 13, MUTED))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif" role="img" '
        'aria-label="The rooms of Isonomy and their layers">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _root(
    root: str,
    rows: list[list[str]],
    x: float,
    y: float,
    width: float,
    height: float,
    gradient: list[list[str]] | None = None,
) -> list[str]:
    """One source root: a frame, its name, and a row of rooms per layer."""
    fill, colour = COLOURS[root]
    source = f"{SOURCES[root]}/isonomy/{root}"
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
        f'stroke="{colour}" stroke-width="1.5"/>',
        _text(x + 12, y + 22, root, 16, colour, weight="700"),
        _text(x + width - 12, y + 22, source, 12, MUTED, anchor="end"),
    ]
    for number, layer in enumerate(rows):
        top = y + HEAD + number * ROW
        each = (width - 2 * GAP - (len(layer) - 1) * GAP) / len(layer)
        for place, room in enumerate(layer):
            left = x + GAP + place * (each + GAP)
            caption = CAPTIONS[room]
            if room == "company/gradient" and gradient:
                caption = " › ".join(
                    " ".join(name.rsplit("/", 1)[1] for name in names) for names in gradient
                )
            parts += _room(room.split("/", 1)[1], caption, left, top, each, colour)
    return parts


def _room(name: str, caption: str, x: float, y: float, width: float, colour: str) -> list[str]:
    return [
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - GAP}" rx="5" '
        f'fill="#ffffff" stroke="{colour}" stroke-opacity="0.55"/>',
        _text(x + 9, y + 15, name, 13.5, INK, weight="600"),
        _text(x + 9, y + 30, caption, 11.5, MUTED),
    ]


def _arrow(x: float, start: float, end: float) -> str:
    return (
        f'<path d="M{x} {start + 2}V{end - 8}m-5 -1l5 7l5 -7" fill="none" stroke="{LINE}" '
        'stroke-width="1.6"/>'
    )


def _text(
    x: float, y: float, text: str, size: float, colour: str, *, anchor: str = "", weight: str = ""
) -> str:
    extra = f' text-anchor="{anchor}"' if anchor else ""
    extra += f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}"{extra}>{text}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw())
