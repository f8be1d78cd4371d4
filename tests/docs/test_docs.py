"""What the pages say is true: their files plan, their programs run, their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from docs.generate import main, pages

from icestream.catalogs.jdbc import embedded
from icestream.config import parse
from icestream.contracts import registry
from icestream.engine.dry_run.cases import load_cases
from icestream.engine.dry_run.pipeline_tests import run_cases
from icestream.plan import build, refuse_planned

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").rglob("*"))
    if path.suffix in (".yaml", ".py", ".json") and ".icestream" not in path.parts
]
# Its file needs its format, which is installed in tests/unit/test_plugins.py only.
PLUGIN = ROOT / "examples" / "format-plugin"
FENCE = re.compile(
    r"^(?P<mark><!-- compile only: [^\n]+ -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
VARIABLE = re.compile(r"\$\{(\w+)\}")
# Fits a password as well as an address, which must look like one.
VALUE = "https://value.example"
FORBIDDEN = (
    # Where packages come from is the reader's business, and so is this machine's disk.
    r"https?://\S*(maven|pypi|pythonhosted|npm|crates|golang|debian)",
    r"/(wor[k]|roo[t])/|/home/\w|/Users/\w",
    r"\b([Ss]imply|[Jj]ust)\b",
)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    text: str
    compile_only: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(kind: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += [
            Block(page, text.count("\n", 0, fence.start()) + 1, fence["text"], bool(fence["mark"]))
            for fence in FENCE.finditer(text)
            if fence["kind"] == kind
        ]
    return found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the guides leave it: an embedded lake with a table or two."""
    folder = tmp_path_factory.mktemp("reader")
    client = embedded(folder / "lake").client()
    for name in ("sales.orders", "demo.shop_events"):
        rows = pa.table({"id": [1, 2, 3]})
        client.create_namespace(name.split(".")[0])
        client.create_table(name, schema=rows.schema).append(rows)
    return folder


def is_test_file(text: str) -> bool:
    return re.search("^tests:", text, re.MULTILINE) is not None


def run_test_file(path: Path) -> list[str]:
    """Run a test file; return what is wrong."""
    results = run_cases([load_cases(path)], lambda: pytest.fail("Spark would start"))
    return [
        f"{result.where}: {result.problems} {result.rows}"
        for result in results
        if not result.passed
    ]


@pytest.mark.parametrize(
    "block", [block for block in blocks("yaml") if not is_test_file(block.text)], ids=str
)
def test_yaml_block_passes_an_offline_check(block: Block, tmp_path: Path) -> None:
    variables = dict.fromkeys(VARIABLE.findall(block.text), VALUE)

    config = parse(block.text, tmp_path / "icestream.yaml", environment=variables)

    refuse_planned(build(config))


@pytest.mark.parametrize(
    "block", [block for block in blocks("yaml") if is_test_file(block.text)], ids=str
)
def test_tests_of_a_page_pass_with_the_configuration_above_them(
    block: Block, tmp_path: Path
) -> None:
    above = [other for other in blocks("yaml") if other.page == block.page]
    config = above[above.index(block) - 1].text
    (tmp_path / "icestream.yaml").write_text(config, encoding="utf-8")
    (tmp_path / "a.test.yaml").write_text(block.text, encoding="utf-8")

    assert run_test_file(tmp_path / "a.test.yaml") == []


def test_tests_of_an_example_pass() -> None:
    assert run_test_file(ROOT / "examples" / "files_to_lake" / "orders.test.yaml") == []


@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if not block.compile_only], ids=str
)
def test_python_block_runs(block: Block, lake: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block.text], cwd=lake, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if block.compile_only], ids=str
)
def test_python_block_that_needs_spark_compiles(block: Block) -> None:
    compiled = compile(block.text, str(block), "exec")

    names = [name for name in compiled.co_names if name.startswith("Iceberg")]
    exported = __import__("icestream").__all__
    assert set(names) <= set(exported)


@pytest.mark.parametrize(
    "example",
    [
        path
        for path in EXAMPLES
        if path.suffix == ".yaml" and path.parent != PLUGIN and not path.name.endswith(".test.yaml")
    ],
    ids=lambda path: path.parent.name,
)
def test_example_file_passes_an_offline_check(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    variables = dict.fromkeys(VARIABLE.findall(text), VALUE)

    refuse_planned(build(parse(text, example, environment=variables)))


@pytest.mark.parametrize("name", ["pairs_format.py", "test_pairs_format.py", "pyproject.toml"])
def test_guide_shows_the_files_of_the_example_plugin(name: str) -> None:
    guide = (ROOT / "docs/guides/writing-a-connector.md").read_text(encoding="utf-8")

    shown = {fence["text"] for fence in FENCE.finditer(guide)}
    assert (PLUGIN / name).read_text(encoding="utf-8") in shown


def test_generated_pages_are_up_to_date() -> None:
    differing = [
        str(path.relative_to(ROOT))
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]

    assert differing == [], "run `make docs`"


def test_check_is_silent_when_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_internal_links_resolve(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in LINK.finditer(text):
        target, _, anchor = link["target"].partition("#")
        if target.startswith(("http:", "https:")):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link["target"])

    assert broken == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_page_names_no_registry_no_machine_and_no_filler(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert [found[0] for words in FORBIDDEN for found in re.finditer(words, text)] == []


def test_demo_image_names_no_machine_and_loads_nothing() -> None:
    text = (ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")

    assert [found[0] for words in FORBIDDEN for found in re.finditer(words, text)] == []
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    missing = [
        str(page.relative_to(docs))
        for page in PAGES
        if page.is_relative_to(docs) and f": {page.relative_to(docs)}" not in navigation
    ]

    assert missing == []


def test_every_connector_has_a_page() -> None:
    named = [
        f"{role}/{name}"
        for role in ("sources", "sinks", "catalogs", "storage")
        for name in registry.names(role)
        if registry.is_ours(role, name) and getattr(registry.find(role, name), "options_type", None)
    ]
    steps = anchors(ROOT / "docs/connectors/transforms.md")

    assert [one for one in named if not (ROOT / f"docs/connectors/{one}.md").exists()] == []
    assert [one for one in registry.names("transforms") if one not in steps] == []


def test_readme_and_contributing_show_the_commands_that_ci_runs() -> None:
    shown = "".join(
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")
    )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", shown, re.MULTILINE))
    targets = {target for pair in named for target in pair if target}

    assert {"demo", "test", "check", "bench", "chaos", "docs"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_contributing_maps_every_package() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "icestream"
    packages = {str(path.parent.relative_to(source)) for path in source.rglob("__init__.py")}

    missing = [name for name in sorted(packages) if f"| [`{name}`](" not in contributing]

    # The folder of sinks holds one of them, which the map names.
    assert missing == [".", "sinks"]
