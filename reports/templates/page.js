"use strict";

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.textContent.trim();
  return { number: Number(cell.dataset.value ?? (text.replace("<", "") || NaN)), text };
}

function before(a, b) {
  const numeric = Number(isNaN(a.number)) - Number(isNaN(b.number));
  if (numeric !== 0 || isNaN(a.number)) return { fixed: numeric, order: a.text.localeCompare(b.text, "en", { numeric: true }) };
  return { fixed: 0, order: a.number - b.number };
}

// Entries without a number stay at the end in either direction.
function sort(table, head) {
  const heads = [...table.querySelectorAll(".heads th")];
  const column = heads.indexOf(head);
  const down = head.getAttribute("aria-sort") === "descending" || column === 0 && !head.hasAttribute("aria-sort");
  for (const other of heads) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => {
    const { fixed, order } = before(a, b);
    return fixed || (down ? order : -order);
  });
  body.append(...rows.map(([, row]) => row));
}

function filter(input) {
  const wanted = input.value.toLowerCase().split(/\s+/);
  for (const row of input.parentElement.querySelector("tbody").rows) {
    const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
    row.hidden = !wanted.every((word) => text.includes(word));
  }
}

for (const table of document.querySelectorAll("table")) {
  for (const head of table.querySelectorAll(".heads th")) {
    head.firstElementChild.addEventListener("click", () => sort(table, head));
  }
}
for (const input of document.querySelectorAll(".filter")) {
  input.addEventListener("input", () => filter(input));
}

// A link may lead to a row that is folded away or filtered out.
function uncover() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target.hidden = false;
  target.scrollIntoView({ block: "center" });
}
addEventListener("hashchange", uncover);
addEventListener("load", uncover);

const dialog = document.querySelector("dialog");
for (const button of document.querySelectorAll(".enlarge")) {
  button.addEventListener("click", () => {
    const shown = button.querySelector("img");
    dialog.firstElementChild.src = shown.currentSrc;
    dialog.firstElementChild.alt = shown.alt;
    dialog.showModal();
  });
}
dialog.addEventListener("click", () => dialog.close());
