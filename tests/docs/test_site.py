"""The site is built without a warning, and messages name pages that there are, in a wheel too."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import make_docs
from romou.base import pages
from romou.cli import main
from support.docs.documents import ROOT
from support.docs.site_search import hits, versions
from support.servers.forked import run

# Words to read in each room, at most. The site's build prints them.
MOST_WORDS = {"guide": 14_000, "evidence": 39_500, "reference": 43_000, "contributing": 14_000}

# What a stranger types -> where the answer is.
QUESTIONS = {
    "how many trials and how long": "/guide/faq/#how-many-trials-do-i-need-and-how-long-does-tuning-take",
    "from PyTorch to a phone": "/guide/pytorch-to-pixel/",
    "Galaxy S23": "/guide/faq/#my-phone-is-a-galaxy-s23-what-do-i-write",
    "exit code 3": "/guide/faq/#what-does-exit-code-3-mean",
    "elementwise_pack_1x1x224x224x4": "/guide/faq/#what-is-elementwise_pack_-in-my-table",
    "free batch": "/guide/faq/#my-model-has-a-free-batch-what-now",
    "int4 weights": "/guide/faq/#does-romou-take-int4-weights",
    "call it from Kotlin": "/guide/faq/#how-do-i-call-a-model-from-kotlin",
    "what was measured where": "/guide/faq/#what-was-measured-where",
    "is the GPU worth it": "/guide/faq/#is-the-gpu-worth-it-or-is-the-phones-cpu-faster",
    "add a device": "/guide/faq/#how-do-i-add-a-device",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of the site, and what its build printed."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "ROMOU_REPOSITORY": "https://example.org/owner/romou"}
    done = run("-m", "mkdocs", "build", "--site-dir", str(folder), env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_it_is_built_with_the_pages_that_are_stored_nowhere(site: tuple[Path, str]) -> None:
    folder, _ = site
    assert not [path for path in make_docs.PAGES if (ROOT / path).exists()], "the build writes these: git rm them"
    for name, text in {"cli": "romou tune", "python": "romou.TunedModel", "phones": "Galaxy S23"}.items():
        assert text in (folder / "reference" / name / "index.html").read_text(), name
    shapes = (folder / "guide/shapes/index.html").read_text()
    assert 'data-md-color-scheme="slate"' in shapes, "a dark system gets a dark page"
    assert "https://example.org/owner/romou/edit/main/docs/guide/shapes.md" in shapes
    assert not re.search(r'(?:src|href)="https?://(?!example\.org|squidfunk)[^"]*\.(?:js|css|woff2?)', shapes), (
        "a page asks no other host for anything"
    )


def test_a_rooms_words_are_counted(site: tuple[Path, str]) -> None:
    """The build prints them. Who adds a page raises the limit, or takes words away elsewhere."""
    counts = {room: int(count.replace(",", "")) for room, count in re.findall(r"(\w+) ([\d,]+)(?:, |\n)", site[1])}
    for room, most in MOST_WORDS.items():
        assert most / 2 < counts[room] <= most, f"{room}: {counts[room]} words"


def test_a_strangers_questions_are_answered_by_one_click(site: tuple[Path, str]) -> None:
    """The first hit is the page, and the paragraph is the first below it."""
    found = hits(site[0], [*QUESTIONS, *"0123456789"])
    wrong = {
        question: found[question][:4] for question, answer in QUESTIONS.items() if answer not in found[question][:2]
    }
    assert not wrong
    assert all(found.values()), "lunr fails at some digits: scripts/docs_site.py"


def test_each_release_keeps_its_pages(tmp_path: Path) -> None:
    """`mike deploy` adds a folder to the branch gh-pages, and the heading of each page leads to the others."""
    pages = {
        "docs_dir": str(ROOT / "docs"),
        "site_dir": str(tmp_path / "built"),
        "hooks": [f"{ROOT}/scripts/docs_site.py"],
    }
    (tmp_path / "mkdocs.yml").write_text(json.dumps({"INHERIT": str(ROOT / "mkdocs.yml"), **pages}))
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for name in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{name}_NAME": "tester", f"GIT_{name}_EMAIL": "tester@example.org"}
    for words in ("init --quiet", "commit --quiet --allow-empty --message=pages"):
        subprocess.run(["git", *words.split()], check=True, cwd=tmp_path, env=environment)
    for version in ("0.2.0", "0.3.0"):
        deploy = ("deploy", "--update-aliases", version, "latest")
        done = run("-c", "from mike.driver import main; main()", *deploy, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run(["git", "checkout", "--quiet", "gh-pages"], check=True, cwd=tmp_path)
    kept = {each["version"]: each["aliases"] for each in json.loads((tmp_path / "versions.json").read_text())}
    assert kept == {"0.3.0": ["latest"], "0.2.0": []}
    assert all((tmp_path / version / "guide/shapes/index.html").is_file() for version in (*kept, "latest"))
    assert versions(tmp_path, "0.2.0") == {"0.3.0": "/0.3.0/", "0.2.0": "/0.2.0/"}


def test_messages_name_pages_that_there_are() -> None:
    topics = {
        (str(path.relative_to(ROOT)), topic)
        for path in (ROOT / "romou").rglob("*.py")
        for topic in re.findall(r"`romou docs ([a-z_-]+)`|page_of\(['\"]([a-z_-]+)['\"]\)", path.read_text())
        for topic in filter(None, topic)
    }
    assert len(topics) > 5
    assert [each for each in topics if each[1] not in pages.stored_pages()] == []


def test_a_page_is_printed_where_there_is_no_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """setup.py copies the pages to where the command looks first; tests/packaging/test_wheel.py sees them there."""
    for room in pages.ROOMS:
        shutil.copytree(ROOT / "docs" / room, tmp_path / "romou/docs" / room)
    monkeypatch.setattr(pages, "_PACKAGE", tmp_path / "romou")
    printed = CliRunner().invoke(main, ["docs", "shapes"])
    assert printed.stdout.startswith("# Shapes\n")
    listed = CliRunner().invoke(main, ["docs"]).stdout.splitlines()
    assert {line.split()[0] for line in listed} == set(pages.stored_pages())
    missing = CliRunner().invoke(main, ["docs", "shape"])
    assert missing.exit_code == 2
    assert "Did you mean 'shapes'?" in missing.stderr
