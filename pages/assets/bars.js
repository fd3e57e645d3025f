// Horizontal bars, each made of pieces. Buttons choose the view, where there are several.
charts.bars = (plot, chart) => {
  let view = chart.views[0];
  if (chart.views.length > 1) {
    const bar = html(plot, "div", { class: "controls", role: "group", "aria-label": "What the bars show" });
    const buttons = chart.views.map((one) => {
      const button = html(bar, "button", { type: "button", "aria-pressed": String(one === view) }, one.name);
      button.addEventListener("click", () => {
        view = one;
        buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        again();
      });
      return button;
    });
  }
  const names = html(plot, "div");
  const root = svg(plot, "svg", { role: "img", "aria-label": `${chart.title}; the numbers are in the table below` });
  const box = tip(plot);
  const again = redrawn(plot, (width) => {
    root.replaceChildren();
    names.replaceChildren();
    if (chart.series.length > 1) legend(names, chart.series.map((series) => [series.name, colour(series.colour)]));
    const longest = Math.max(0, ...view.labels.map(wide));
    const narrow = width < 560; // labels stand above the bars
    const left = narrow ? 0 : Math.min(260, 14 + longest), right = 62;
    const height = narrow ? 36 : 22, top = 4;
    const totals = view.values.map((values) => values.reduce((a, b) => a + b, 0));
    const most = Math.max(...totals, view.longest, 1e-12), bottom = top + view.labels.length * height;
    const x = scale(0, most, left, width - right);
    root.setAttribute("viewBox", `0 0 ${width} ${bottom + 24}`);
    root.setAttribute("height", bottom + 24);
    for (const [at, text] of labelled(ticks(0, most, (width - left - right) / 90))) {
      svg(root, "line", { x1: x(at), x2: x(at), y1: top, y2: bottom, class: "grid" });
      svg(root, "text", { x: x(at), y: bottom + 16, "text-anchor": at ? "middle" : "start", class: "soft" }, text);
    }
    view.labels.forEach((label, row) => {
      const y = top + row * height, middle = narrow ? y + 13 : y + height / 2 + 4;
      const thick = narrow ? 14 : height - 7, begin = narrow ? y + 18 : y + 3;
      svg(root, "text", narrow ? { x: 0, y: middle } : { x: left - 8, y: middle, "text-anchor": "end" },
        cut(label, narrow ? width : left - 10));
      let sum = 0;
      view.values[row].forEach((value, number) => {
        if (!value) return;
        const series = chart.series[number];
        const piece = svg(root, "rect", {
          x: x(sum), y: begin, width: Math.max(0.3, x(sum + value) - x(sum)), height: thick, fill: colour(series.colour),
        });
        sum += value;
        const share = `${(100 * value / totals[row]).toFixed(1)} %`;
        piece.addEventListener("pointermove", (event) => box.show(...within(plot, event),
          `${label}\n${series.name}: ${full(value)}, ${share} of ${full(totals[row])}`));
        piece.addEventListener("pointerleave", () => box.hide());
      });
      svg(root, "text", { x: x(sum) + 6, y: begin + thick - 3, class: "soft" }, sum ? short(sum) : "");
    });
  });
};
