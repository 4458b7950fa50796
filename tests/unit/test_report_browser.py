"""The page in a real browser: no message on its console, and hostile text that stays text."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import support_report as sample

from leadline.report import html

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium"),
]


def open_page(tmp_path: Path, page: str) -> tuple[str, str]:
    """The document after loading, and what the browser had to say on its console."""
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            *quiet,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    console = "\n".join(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
    return done.stdout, console


@pytest.mark.parametrize("make", [sample.measured, sample.hostile])
def test_the_page_opens_without_a_message_on_the_console(tmp_path, make):
    document, console = open_page(tmp_path, html.render(make()))
    assert console == ""
    assert 'id="method"' in document


def test_the_policy_stops_a_script_that_slipped_through(tmp_path):
    broken = html.render(sample.measured()).replace("</main>", "<script>document.title = 'taken'</script></main>")
    document, console = open_page(tmp_path, broken)
    assert "<title>taken" not in document
    assert "Content Security Policy" in console
