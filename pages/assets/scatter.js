// Points and lines. A point that is chosen shows what is known of it below the chart.
charts.scatter = (plot, chart) => {
  const names = html(plot, "div");
  const root = svg(plot, "svg", { role: "group", "aria-label": `${chart.title}; the numbers are in the table below` });
  const about = html(plot, "p", { class: "readout", "aria-live": "polite" }, "Choose a point to read it.");
  const box = tip(plot);
  let chosen = -1;
  const log = chart.log_axes;
  const ends = (values) => {
    const low = Math.min(...values), high = Math.max(...values);
    if (log) return [low / 1.5, high * 1.5];
    const margin = (high - low || Math.abs(high) || 1) * 0.08;
    return [low - margin, high + margin];
  };
  const all = [...chart.points.map((p) => [p.x, p.y]), ...chart.lines.flatMap((line) => line.points), ...chart.also];
  const [xLow, xHigh] = ends(all.map(([x]) => x)), [yLow, yHigh] = ends(all.map(([, y]) => y));
  const told = (point) => [point.name, ...Object.entries(point.facts).map(([name, value]) => `${name}: ${value}`)];

  redrawn(plot, (width) => {
    const left = 54, right = 14, top = 12, height = Math.min(440, Math.max(280, width * 0.52)), bottom = height - 44;
    root.replaceChildren();
    names.replaceChildren();
    if (chart.series.length > 1) legend(names, chart.series.map((one) => [one.name, colour(one.colour)]));
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    root.setAttribute("height", height);
    const x = scale(xLow, xHigh, left, width - right, log), y = scale(yLow, yHigh, bottom, top, log);
    const marks = log ? logTicks : ticks;
    for (const [at, text] of labelled(marks(xLow, xHigh, width / (log ? 60 : 100)))) {
      svg(root, "line", { x1: x(at), x2: x(at), y1: top, y2: bottom, class: "grid" });
      svg(root, "text", { x: x(at), y: bottom + 16, "text-anchor": "middle", class: "soft" }, text);
    }
    for (const [at, text] of labelled(marks(yLow, yHigh, height / 40))) {
      svg(root, "line", { x1: left, x2: width - right, y1: y(at), y2: y(at), class: "grid" });
      svg(root, "text", { x: left - 7, y: y(at) + 4, "text-anchor": "end", class: "soft" }, text);
    }
    svg(root, "text", { x: width - right, y: height - 6, "text-anchor": "end", class: "soft" }, chart.x_title);
    svg(root, "text", { x: left + 5, y: top + 2, class: "soft" }, chart.y_title);
    const taken = []; // boxes that a name may not cover: x, y, width, height
    for (const line of chart.lines) {
      svg(root, "polyline", { points: line.points.map(([a, b]) => `${x(a)},${y(b)}`).join(" "), class: "roof" });
      line.points.slice(1).forEach(([a, b], i) => { // small boxes along the line
        const from = [x(line.points[i][0]), y(line.points[i][1])], to = [x(a), y(b)];
        const parts = Math.ceil(Math.hypot(to[0] - from[0], to[1] - from[1]) / 8) || 1;
        for (let k = 0; k <= parts; k++) {
          taken.push([from[0] + ((to[0] - from[0]) * k) / parts - 2, from[1] + ((to[1] - from[1]) * k) / parts - 2, 4, 4]);
        }
      });
      const [a, b] = line.points[line.points.length - 1];
      svg(root, "text", { x: x(a), y: y(b) - 6, "text-anchor": "end", class: "soft" }, line.name);
      taken.push([x(a) - wide(line.name), y(b) - 19, wide(line.name), 16]);
    }
    for (const point of chart.points) taken.push([x(point.x) - 6, y(point.y) - 6, 12, 12]);
    chart.points.forEach((point, number) => {
      const at = [x(point.x), y(point.y)];
      const series = chart.series[point.series] || { name: "", colour: 2 };
      const mark = svg(root, "circle", { cx: at[0], cy: at[1], r: 5.5, fill: colour(series.colour), "fill-opacity": 0.85,
        class: number === chosen ? "mark chosen" : "mark", tabindex: 0, role: "button", "aria-label": told(point).join(", ") });
      const choose = () => {
        chosen = number;
        root.querySelectorAll(".chosen").forEach((other) => other.classList.remove("chosen"));
        mark.classList.add("chosen");
        about.textContent = told(point).join(" · ");
        plot.dispatchEvent(new CustomEvent("chosen", { detail: { number, name: point.name }, bubbles: true }));
      };
      mark.addEventListener("click", choose);
      mark.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { choose(); event.preventDefault(); }
      });
      mark.addEventListener("pointerenter", (event) => box.show(...within(plot, event), told(point).join("\n")));
      mark.addEventListener("pointerleave", () => box.hide());
      const size = [wide(point.name), 14];
      const free = [[9, 4], [9, -8], [9, 16], [-9 - size[0], 4], [-9 - size[0], -8], [-9 - size[0], 16], [-size[0] / 2, -11], [-size[0] / 2, 21],
        [12, 28], [12, 40], [12, 52], [-12 - size[0], 28], [-12 - size[0], 40], [-12 - size[0], 52]]
        .map(([dx, dy]) => [at[0] + dx, at[1] + dy - 11, ...size])
        .find(([a, b, w, h]) => a >= left && a + w <= width - right && b >= top && b + h <= bottom
          && !taken.some(([c, d, v, u]) => a < c + v && c < a + w && b < d + u && d < b + h));
      if (!free) return; // no room: the name is in the tip, and in the table
      taken.push(free);
      if (Math.abs(free[1] + 7 - at[1]) > 22) { // far away: a thin line leads there
        svg(root, "line", { x1: at[0], y1: at[1] + 6, x2: free[0] + (free[0] > at[0] ? 0 : size[0]), y2: free[1] + 2, class: "grid" });
      }
      svg(root, "text", { x: free[0], y: free[1] + 11 }, point.name);
    });
  });
};
