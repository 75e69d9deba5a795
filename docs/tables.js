// Sort a table by a column: click its heading; a second click reverses the order.
const readCell = (row, column) => {
  const text = row.cells[column]?.textContent.trim() ?? "";
  const number = parseFloat(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text.toLowerCase() : number;
};
const compare = (a, b) =>
  typeof a === "number" && typeof b === "number" ? b - a : String(a).localeCompare(String(b));
const sortBy = (heading) => {
  const direction = heading.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  const body = heading.closest("table").tBodies[0];
  const sign = direction === "descending" ? 1 : -1;
  const column = heading.cellIndex;
  body.append(...[...body.rows].sort((a, b) => sign * compare(readCell(a, column), readCell(b, column))));
};
for (const heading of document.querySelectorAll(".md-typeset table:not([class]) thead th")) {
  if (heading.closest("table").tBodies[0].rows.length < 4) continue;
  const button = document.createElement("button");
  button.title = "Sort";
  button.append(...heading.childNodes);
  button.addEventListener("click", () => sortBy(heading));
  heading.append(button);
}
