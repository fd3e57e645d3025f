// Parallel coordinates: an axis for each knob and value, a line for each design. A line can be chosen.
charts.parallel = (plot, chart) => {
  const names = html(plot, "div");
  const root = svg(plot, "svg", { role: "group", "aria-label": `${chart.title}; the numbers are in the table below` });
  const about = html(plot, "p", { class: "readout", "aria-live": "polite" }, "Choose a line to read it.");
  let chosen = "";
  const told = (line) => [line.name, ...chart.axes.map((axis, n) => `${axis.name}: ${full(line.values[n])}`)].join(" · ");
  const again = redrawn(plot, (width) => {
    root.replaceChildren();
    names.replaceChildren();
    legend(names, chart.series.map((one) => [one.name, colour(one.colour)]));
    const rowHigh = 46, left = Math.min(150, width * 0.32), right = 40, top = 14;
    const bottom = top + (chart.axes.length - 1) * rowHigh;
    root.setAttribute("viewBox", `0 0 ${width} ${bottom + 24}`);
    root.setAttribute("height", bottom + 24);
    const places = chart.axes.map((axis, n) => {
      const y = top + n * rowHigh;
      svg(root, "text", { x: 0, y: y + 4, class: "soft" }, cut(axis.name, left - 12));
      svg(root, "line", { x1: left, x2: width - right, y1: y, y2: y, class: "axis" });
      const values = chart.lines.map((line) => line.values[n]);
      const low = Math.min(...values), high = Math.max(...values);
      const x = scale(low, high, left, width - right, low > 0 && high / low > 8);
      svg(root, "text", { x: left, y: y + 15, class: "soft" }, short(low));
      if (high > low) svg(root, "text", { x: width - right, y: y + 15, "text-anchor": "end", class: "soft" }, short(high));
      return (value) => [high > low ? x(value) : (left + width - right) / 2, y];
    });
    for (const line of chart.lines) {
      const points = line.values.map((value, n) => places[n](value).join(",")).join(" ");
      const mine = line.name === chosen;
      const drawn = svg(root, "polyline", { points, fill: "none", stroke: colour(chart.series[line.series].colour), tabindex: 0, role: "button",
        "stroke-width": mine ? 4 : 1.8, "stroke-opacity": mine || !chosen ? 0.9 : 0.35, class: "mark", "aria-label": told(line) });
      const choose = () => plot.dispatchEvent(new CustomEvent("chosen", { detail: { name: line.name }, bubbles: true }));
      drawn.addEventListener("click", choose);
      drawn.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { choose(); event.preventDefault(); }
      });
    }
  });
  document.addEventListener("chosen", (event) => {
    const line = chart.lines.find((one) => one.name === event.detail.name);
    if (!line) return;
    chosen = line.name;
    about.textContent = told(line);
    again();
  });
};
