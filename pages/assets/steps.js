// Lines of steps over time, one below the other where there are several: each has its own band.
charts.steps = (plot, chart) => {
  const LEFT = 58, BAND = 46, GAP = 8;
  const time = timeOf(chart.link, chart.end), { view } = time;
  let drawn = 0;
  const root = svg(plot, "svg", { role: "img", tabindex: -1, "aria-label": `${chart.title}; the numbers are in the table below` });
  const box = tip(plot);
  const again = redrawn(plot, (width) => {
    root.replaceChildren();
    const inside = width - LEFT - 66, bottom = 6 + chart.lines.length * (BAND + GAP);
    root.setAttribute("viewBox", `0 0 ${width} ${bottom + 36}`);
    root.setAttribute("height", bottom + 36);
    const x = timeAxis(root, view, LEFT, inside, 0, bottom);
    chart.lines.forEach(({ series, values }, number) => {
      const top = 6 + number * (BAND + GAP), y = scale(0, chart.y_end, top + BAND, top);
      svg(root, "text", { x: LEFT - 8, y: top + BAND / 2 + 4, "text-anchor": "end" }, series.name);
      svg(root, "line", { x1: LEFT, x2: LEFT + inside, y1: top + BAND, y2: top + BAND, class: "axis" });
      svg(root, "line", { x1: LEFT, x2: LEFT + inside, y1: top, y2: top, class: "grid", "stroke-dasharray": "3 3" });
      svg(root, "text", { x: LEFT + inside + 5, y: top + 9, class: "soft" }, `most ${short(Math.max(...values))}`);
      const step = chart.end / values.length;
      const first = Math.max(0, Math.floor(view.begin / step)), last = Math.min(values.length - 1, Math.floor(view.end / step));
      let path = `M${x(Math.max(view.begin, first * step))},${y(0)}`;
      for (let i = first; i <= last; i++) {
        path += `V${y(values[i])}H${x(Math.min(view.end, (i + 1) * step))}`;
      }
      svg(root, "path", { d: `${path}V${y(0)}Z`, fill: colour(series.colour), "fill-opacity": 0.75 });
      const cover = svg(root, "rect", { x: LEFT, y: top, width: inside, height: BAND, fill: "transparent" });
      cover.addEventListener("pointermove", (event) => {
        const [px, py] = within(plot, event);
        const cycle = view.begin + ((px - LEFT) / inside) * (view.end - view.begin);
        const at = Math.min(values.length - 1, Math.max(0, Math.floor(cycle / step)));
        box.show(px, py, `${series.name}, cycles ${full(Math.floor(at * step))} to ${full(Math.floor((at + 1) * step))}\n${chart.y_title}: ${full(values[at])}`);
      });
      cover.addEventListener("pointerleave", () => box.hide());
    });
  });
  time.listen(() => { cancelAnimationFrame(drawn); drawn = requestAnimationFrame(again); });
};
