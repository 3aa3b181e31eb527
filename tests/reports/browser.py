"""A page in a real browser: what it does, and what it must not do."""

import html
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

FRAME = """<!DOCTYPE html>
<style>body { margin: 0 } iframe { border: 0; width: WIDTHpx; height: HEIGHTpx }</style>
<pre id="found"></pre>
<script>addEventListener("message", (one) => { document.querySelector("#found").textContent = one.data; });</script>
<iframe src="page.html"></iframe>
"""
"""A window is 500 pixels wide at least; a frame in it may be as narrow as a phone."""

PROBE = r"""
<script>
// Words of row labels and captions that stand on two lines.
function brokenWords() {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const broken = [];
  for (const place of document.querySelectorAll("tbody th, figcaption, nav a")) {
    const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      for (const word of text.data.matchAll(/[\w]+/g)) {
        const range = new Range();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((one) => one.top)).size > 1) broken.push(word[0]);
      }
    }
  }
  for (const fold of document.querySelectorAll("details")) fold.open = false;
  return broken;
}
addEventListener("load", () => {
const found = { errors: window.errors, tables: document.querySelectorAll("table").length, sorts: [] };
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.querySelectorAll(".heads th")];
  for (let click = 0; click < 2; click++) {
    heads[heads.length - 1].firstElementChild.click();
    found.sorts.push([...table.tBodies[0].rows].map((row) => row.cells[heads.length - 1].dataset.value ?? null));
  }
}
found.broken = brokenWords();
const link = document.querySelector("td a.figure");
if (link) {
  document.getElementById(decodeURI(link.hash.slice(1))).hidden = true;  // as the table's filter does
  location.hash = link.hash;
  dispatchEvent(new HashChangeEvent("hashchange"));
  const target = document.querySelector(":target");
  found.link = { from: link.closest("tr").cells[0].textContent, to: target.textContent };
  found.link.seen = target.getClientRects().length > 0 && target.closest("details").open;
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
found.inner = innerWidth;
found.nav = [...document.querySelectorAll("nav a")].every((one) => one.getBoundingClientRect().right <= innerWidth);
found.backticks = [...document.querySelectorAll("figcaption, p, li")].some((one) => one.textContent.includes("`"));
parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""


def look(page: Path, folder: Path, size: str, *, table: str, typed: str) -> dict[str, Any]:
    """Open a page, follow a link, sort tables by their last column, filter one, enlarge a picture; say what was seen.

    Args:
        page: an `index.html`.
        folder: for the browser's files.
        size: of what the page has for itself, "width,height".
        table: the id of the table whose rows are filtered.
        typed: what is typed into its filter.
    """
    catch = "<script>window.errors = []; addEventListener('error', (one) => errors.push(one.message));</script>"
    probe = PROBE.replace("TABLE", table).replace("TYPED", typed)
    text = page.read_text(encoding="utf-8").replace("<title>", f"{catch}<title>").replace("</body>", f"{probe}</body>")
    (folder / "page.html").write_text(text, encoding="utf-8")
    width, height = size.split(",")
    frame = FRAME.replace("WIDTH", width).replace("HEIGHT", height)
    (folder / "frame.html").write_text(frame, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr", f"--window-size={size}"]
    flags += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    command = [str(BROWSER), *flags, (folder / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)
    assert told, "the page did not come to an end"
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    assert found["inner"] == int(width)
    return {**found, "console": [line for line in done.stderr.splitlines() if "CONSOLE" in line]}


def assert_alive(found: dict[str, Any]) -> None:
    """No errors, no requests, no sideways scrolling, no broken words; pictures enlarge; columns sort by numbers."""
    assert found["errors"] == found["console"] == found["requests"] == []
    assert found["images"]
    assert found["enlarged"]
    assert found["width"], "the page scrolls sideways"
    assert found["nav"], "links of the navigation lie outside the page"
    assert found["broken"] == [], found["broken"]
    assert not found["backticks"]
    for position, column in enumerate(found["sorts"]):
        numbers = [float(text) for text in column if text is not None]
        assert numbers == sorted(numbers, reverse=position % 2 == 0)
        assert column[len(numbers) :] == [None] * (len(column) - len(numbers)), "entries without a number come last"
