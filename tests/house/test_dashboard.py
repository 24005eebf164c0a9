"""Metrics, their page and the dashboard name the same things, and no label is a name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from isonomy.regulator.serving._metrics import RegulatorMetrics
from isonomy.server.flower.metrics import ServerMetrics

DOCS = Path(__file__).parents[2] / "docs"
LABELS = {"purpose", "code", "outcome", "kind", "le"}
NAME = re.compile(r"isonomy_[a-z_]+")


def metrics() -> dict[str, Any]:
    ledger: Any = SimpleNamespace(plans=lambda: ())
    registries: list[CollectorRegistry] = [
        ServerMetrics().registry,
        RegulatorMetrics(ledger).registry,
    ]
    return {metric.name: metric for registry in registries for metric in registry.collect()}


def shown_names() -> set[str]:
    """As Prometheus shows them."""
    kinds = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}
    return {name + end for name, metric in metrics().items() for end in kinds[metric.type]}


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    board = json.loads((DOCS / "grafana" / "isonomy.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    names = {name for text in asked for name in NAME.findall(text)}
    assert names <= shown_names()
    bases = {re.sub("_(total|bucket)$", "", name) for name in names}
    assert bases == set(metrics()), "every metric has its place"


def test_the_page_lists_every_metric_and_no_other() -> None:
    page = (DOCS / "metrics.md").read_text()
    listed = {name.removesuffix("_total") for name in NAME.findall(page)}
    assert listed == set(metrics())


def test_labels_are_words_of_the_protocol() -> None:
    text = (DOCS / "metrics.md").read_text()
    assert set(re.findall(r"isonomy_\w+\{(\w+)\}", text)) <= LABELS
    for metric in metrics().values():
        for sample in metric.samples:
            assert set(sample.labels) <= LABELS
