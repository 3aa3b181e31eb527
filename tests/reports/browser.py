"""A page in a real browser: what it does, and what it must not do."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium found: install chromium to test the page in a browser"
)

PROBE = """
<script>
addEventListener("load", () => {
const found = { errors: window.errors, tables: document.querySelectorAll("table").length, sorts: [] };
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.querySelectorAll(".heads th")];
  for (let click = 0; click < 2; click++) {
    heads[heads.length - 1].firstElementChild.click();
    found.sorts.push([...table.tBodies[0].rows].map((row) => row.cells[heads.length - 1].dataset.value ?? null));
  }
}
const filter = document.querySelector("#TABLE .filter");
const rows = [...document.querySelector("#TABLE tbody").rows];
filter.value = "TYPED";
filter.dispatchEvent(new Event("input"));
found.kept = rows.filter((row) => !row.hidden).map((row) => row.textContent);
document.querySelector(".enlarge").click();
found.enlarged = document.querySelector("dialog").open;
found.width = document.documentElement.scrollWidth <= innerWidth;
const loaded = performance.getEntriesByType("resource").map((one) => one.name);
found.requests = loaded.filter((name) => !name.startsWith("data:"));
found.images = [...document.querySelectorAll(".picture img")].every((one) => one.complete && one.naturalWidth > 0);
document.body.innerHTML = "<pre id=found></pre>";
document.querySelector("#found").textContent = JSON.stringify(found);
});
</script>
"""


def look(page: Path, folder: Path, size: str, *, table: str, typed: str) -> dict[str, Any]:
    """Open a page, sort every table by its last column, filter one table, enlarge a picture; say what was seen.

    Args:
        page: an `index.html`.
        folder: for the browser's files.
        size: of the window, "width,height".
        table: the id of the table whose rows are filtered.
        typed: what is typed into its filter.
    """
    catch = "<script>window.errors = []; addEventListener('error', (one) => errors.push(one.message));</script>"
    probe = PROBE.replace("TABLE", table).replace("TYPED", typed)
    text = page.read_text(encoding="utf-8").replace("<title>", f"{catch}<title>").replace("</body>", f"{probe}</body>")
    (folder / "page.html").write_text(text, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr", f"--window-size={size}"]
    flags += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    command = [str(BROWSER), *flags, (folder / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told, "the page did not come to an end"
    found: dict[str, Any] = json.loads(told[1].replace("&lt;", "<"))
    return {**found, "console": [line for line in done.stderr.splitlines() if "CONSOLE" in line]}


def assert_alive(found: dict[str, Any]) -> None:
    """No errors, no requests, no sideways scrolling; pictures are drawn and enlarge; columns sort by their numbers."""
    assert found["errors"] == found["console"] == found["requests"] == []
    assert found["images"]
    assert found["enlarged"]
    assert found["width"], "the page scrolls sideways"
    for position, column in enumerate(found["sorts"]):
        numbers = [float(text) for text in column if text is not None]
        assert numbers == sorted(numbers, reverse=position % 2 == 0)
        assert column[len(numbers) :] == [None] * (len(column) - len(numbers)), "entries without a number come last"
