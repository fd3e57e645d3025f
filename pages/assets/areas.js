// Rectangles with names over time: what lies where, and how long.
charts.areas = (plot, chart) => {
  const LEFT = 58;
  const time = timeOf(chart.link, chart.end), { view } = time;
  let drawn = 0;
  const root = svg(plot, "svg", { role: "img", "aria-label": `${chart.title}; the numbers are in the table below` });
  const box = tip(plot);
  const again = redrawn(plot, (width) => {
    root.replaceChildren();
    const inside = width - LEFT - 8, top = 20, bottom = 320;
    root.setAttribute("viewBox", `0 0 ${width} ${bottom + 36}`);
    root.setAttribute("height", bottom + 36);
    svg(root, "text", { x: 0, y: 12, class: "soft" }, chart.y_title);
    const x = timeAxis(root, view, LEFT, inside, top, bottom), y = scale(0, chart.y_end, bottom, top);
    for (const [at, text] of labelled(ticks(0, chart.y_end, 6))) {
      svg(root, "line", { x1: LEFT, x2: LEFT + inside, y1: y(at), y2: y(at), class: "grid" });
      svg(root, "text", { x: LEFT - 7, y: y(at) + 4, "text-anchor": "end", class: "soft" }, text);
    }
    chart.areas.forEach((area, number) => {
      const [begin, end] = area.x.map((at) => Math.min(view.end, Math.max(view.begin, at)));
      if (area.x[1] <= view.begin || area.x[0] >= view.end) return;
      const size = Math.max(0.5, x(end) - x(begin)), high = Math.max(0.5, y(area.y[0]) - y(area.y[1]));
      const rect = svg(root, "rect", { x: x(begin), y: y(area.y[1]), width: size, height: high, fill: hue(number), "fill-opacity": 0.7,
        stroke: colour("paper") });
      if (size > 40 && high > 14) svg(root, "text", { x: x(begin) + 4, y: y(area.y[1]) + 12, "pointer-events": "none" }, cut(area.name, size - 8));
      rect.addEventListener("pointermove", (event) => box.show(...within(plot, event),
        `${area.name}\ncycles ${full(area.x[0])} to ${full(area.x[1])}\nfrom ${full(area.y[0])} to ${full(area.y[1])}: ${full(area.y[1] - area.y[0])}`));
      rect.addEventListener("pointerleave", () => box.hide());
    });
  });
  time.listen(() => { cancelAnimationFrame(drawn); drawn = requestAnimationFrame(again); });
};
