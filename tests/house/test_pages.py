"""Every command of Start, Tutorials and How-to runs in a test, or is listed here with a reason."""

from __future__ import annotations

import re

import pytest
import yaml
from page_kit import DOCS

TESTS = DOCS.parent / "tests"
RUN_BY = {
    "index.md": ["e2e/test_docs.py", "e2e/test_demo.py"],
    "quickstart.md": ["e2e/test_docs.py", "e2e/test_howto.py"],
    "regulator-guide.md": ["e2e/test_regulator_guide.py"],
    "kits.md": ["e2e/test_three_machines.py"],
    "console.md": ["e2e/test_console_newcomer.py"],
    "deploy.md": ["e2e/test_three_machines.py"],
    "operations.md": ["e2e/test_howto.py"],
    "alignment.md": ["e2e/test_howto.py"],
    "reports.md": ["e2e/test_howto.py"],
    "day-two.md": ["e2e/test_docs.py", "e2e/test_three_machines.py"],
    "scores.md": ["company/fair/test_scores.py"],
    "inspection.md": ["e2e/test_howto.py"],
    "scale.md": ["examples/test_scale_page.py"],
    "pooling.md": ["e2e/test_lenders.py", "examples/test_pooling_pages.py"],
    "gradient.md": ["company/gradient/sdk/test_gradient_docs.py"],
    "fermi.md": ["company/gradient/sdk/test_gradient_docs.py"],
    "few-shot.md": ["e2e/test_docs.py"],
    "few-shot-federation.md": ["e2e/test_few_shot.py"],
    "examples/README.md": ["examples/test_examples.py"],
}
NOT_RUN = {  # a line of a page: why no test types it
    "make demo": "installs first; then it is `isonomy demo`, which test_demo.py runs",
    "docker compose --profile console up -d console": "needs an engine: .ci/demo-docker",
    "docker compose exec console isonomy-regulator console": "needs an engine: .ci/demo-docker",
    "import ray": "not among the packages for development; runs where Ray is installed",
    "import SparkSession": "the same for Spark",
    "isonomy bench scale --slow": "a measurement of hours",
    'pip install "$(ls isonomy-*.whl)[': "three machines: .ci/release does it in three folders",
}
COMMAND = re.compile(r"^(?: {4}|```\n)(?:\$ |isonomy|make |pip |docker |python )", re.M)


def guides() -> list[str]:
    """The pages of Start, Tutorials and How-to, by the site's own table of contents."""
    site = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text())
    sections = {name: pages for each in site["nav"] for name, pages in each.items()}
    titled = [*sections["Tutorials"], *sections["How-to"]]
    return [sections["Start"], *(page for each in titled for page in each.values())]


def test_the_table_has_every_guide() -> None:
    assert list(RUN_BY) == guides()


@pytest.mark.parametrize("page", RUN_BY)
def test_a_guide_is_read_by_its_tests(page: str) -> None:
    for name in RUN_BY[page]:
        text = (TESTS / name).read_text()
        assert page in text or page == "examples/README.md", f"{name} does not read {page}"


@pytest.mark.parametrize("page", RUN_BY)
def test_a_command_stands_where_a_test_finds_it(page: str) -> None:
    text = (DOCS / page).read_text()
    for found in COMMAND.finditer(text):
        line = text[found.start() :].split("\n", 2)[found[0].startswith("`")]
        assert any(part in line for part in NOT_RUN), f"{page}: {line}"


@pytest.mark.parametrize("part", NOT_RUN)
def test_an_exception_is_on_a_page(part: str) -> None:
    assert any(part in (DOCS / page).read_text() for page in RUN_BY)
