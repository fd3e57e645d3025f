// Draws every chart of the page, and lets columns of tables be sorted.
const data = JSON.parse(document.getElementById("data").textContent);
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const chart = data[Number(figure.dataset.chart)];
  charts[chart.kind](figure.querySelector(".plot"), chart);
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), table = head.closest("table");
    const column = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "descending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "ascending" : "descending");
    const value = (row) => {
      const cell = row.children[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const before = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "string" ? -1 : 1);
    const rows = [...table.tBodies[0].rows].sort((a, b) => before(value(a), value(b)) * (down ? 1 : -1));
    table.tBodies[0].append(...rows);
  });
}
document.documentElement.dataset.drawn = String(data.length);
