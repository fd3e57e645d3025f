// Rows against time. Where many slices share a pixel, heights say how much of its time the row works; where there is room,
// each slice is drawn.
charts.timeline = (plot, chart) => {
  const LANE = 13, GAP = 12, LEFT = 58, AXIS = 34;
  const { row, lane, start, cycles, label, text, count, active } = chart.slices;
  const depth = chart.rows.map((_, r) => 1 + row.reduce((most, one, i) => (one === r ? Math.max(most, lane[i]) : most), 0));
  const tops = depth.map((_, r) => 6 + depth.slice(0, r).reduce((sum, d) => sum + d * LANE + GAP, 0));
  const bottom = tops[tops.length - 1] + depth[depth.length - 1] * LANE + 6;
  const time = timeOf(chart.link, chart.end), { view } = time;
  let actions, only = -1, drawn = 0, crowded = false, over = null;
  const bar = timeButtons(plot, time, () => actions);
  const choice = html(bar, "select", { "aria-label": "Show one layer" });
  html(choice, "option", { value: -1 }, "all layers");
  chart.labels.forEach((name, number) => html(choice, "option", { value: number }, name || "(no layer)"));
  choice.addEventListener("change", () => {
    only = Number(choice.value);
    if (only < 0) return time.set(0, view.whole);
    let begin = Infinity, end = 0;
    label.forEach((one, i) => {
      if (one === only) { begin = Math.min(begin, start[i]); end = Math.max(end, start[i] + cycles[i]); }
    });
    const margin = (end - begin) * 0.03;
    time.set(Math.max(0, begin - margin), Math.min(view.whole, end + margin));
  });
  const canvas = html(plot, "canvas", { tabindex: 0, role: "img",
    "aria-label": `${chart.title}. Arrows move, plus and minus zoom, 0 shows the whole run. The numbers are in the table below.` });
  const readout = html(plot, "p", { class: "readout", "aria-live": "polite" }, "");
  const hints = [
    "Point at a slice to read it; drag to move, double-click or the buttons to zoom.",
    "Heights say how much of the time a unit works; zoom in to see single slices.",
  ];
  const place = () => ({ left: LEFT, width: canvas.clientWidth - LEFT - 8 });
  actions = timeControls(canvas, time, place);

  /** The slices of the part that is shown. */
  const visible = () => {
    const found = [];
    for (let i = 0; i < row.length; i++) {
      if (start[i] <= view.end && start[i] + cycles[i] >= view.begin) found.push(i);
    }
    return found;
  };

  /** For each pixel of each row: in how much of its time the row works, and for which layer most. */
  const shares = (seen, pixels) => {
    const step = (view.end - view.begin) / pixels;
    const work = chart.rows.map(() => new Float64Array(pixels));
    const layer = chart.rows.map(() => new Int32Array(pixels).fill(-1));
    const best = chart.rows.map(() => new Float64Array(pixels));
    const until = chart.rows.map(() => view.begin);
    for (const i of seen) { // by row and start: what overlaps counts once
      const r = row[i], end = Math.min(view.end, start[i] + cycles[i]);
      const begin = Math.max(until[r], start[i]);
      until[r] = Math.max(until[r], end);
      const part = Math.min(1, active[i] / cycles[i]);
      for (let p = Math.floor((begin - view.begin) / step); p < pixels && view.begin + p * step < end; p++) {
        const from = view.begin + p * step;
        const share = part * (Math.min(end, from + step) - Math.max(begin, from)) / step;
        if (share <= 0) continue;
        work[r][p] += share;
        if (share > best[r][p]) { best[r][p] = share; layer[r][p] = label[i]; }
      }
    }
    return { work, layer };
  };

  const overview = (pen, inside, seen, colours) => {
    const pixels = Math.floor(inside.width);
    over = shares(seen, pixels);
    chart.rows.forEach((_, r) => {
      const high = depth[r] * LANE;
      pen.globalAlpha = 1;
      pen.fillStyle = colour("box");
      pen.fillRect(inside.left, tops[r], pixels, high);
      for (let p = 0; p < pixels; p++) {
        const layer = over.layer[r][p];
        if (layer < 0) continue;
        pen.globalAlpha = only < 0 || layer === only ? 1 : 0.13;
        pen.fillStyle = colours[layer];
        pen.fillRect(inside.left + p, tops[r] + high * (1 - over.work[r][p]), 1, high * over.work[r][p]);
      }
    });
  };

  const draw = (width) => {
    const sharp = devicePixelRatio || 1;
    canvas.style.height = `${bottom + AXIS}px`;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round((bottom + AXIS) * sharp);
    const pen = canvas.getContext("2d");
    pen.scale(sharp, sharp);
    pen.font = FONT;
    const inside = { left: LEFT, width: width - LEFT - 8 };
    const x = scale(view.begin, view.end, inside.left, inside.left + inside.width);
    pen.fillStyle = colour("soft");
    pen.strokeStyle = colour("line");
    pen.textAlign = "center";
    for (const [at, text] of labelled(ticks(view.begin, view.end, inside.width / 90))) {
      pen.beginPath(); pen.moveTo(x(at), 0); pen.lineTo(x(at), bottom); pen.stroke();
      pen.fillText(text, x(at), bottom + 14);
    }
    pen.textAlign = "right";
    pen.fillText("cycles", inside.left + inside.width, bottom + 29);
    pen.textAlign = "left";
    chart.rows.forEach((name, r) => {
      pen.fillStyle = colour("ink");
      pen.fillText(name, 6, tops[r] + depth[r] * LANE / 2 + 4);
    });
    pen.save();
    pen.beginPath(); pen.rect(inside.left, 0, inside.width, bottom); pen.clip();
    const colours = chart.labels.map((_, number) => hue(number));
    const seen = visible();
    crowded = seen.length > inside.width * 0.7;
    if (crowded) overview(pen, inside, seen, colours);
    for (const i of crowded ? [] : seen) {
      const from = x(start[i]), size = x(start[i] + cycles[i]) - from, y = tops[row[i]] + lane[i] * LANE;
      pen.globalAlpha = only < 0 || label[i] === only ? 1 : 0.13;
      pen.fillStyle = colours[label[i]];
      pen.fillRect(from, y, size > 4 ? size - 0.7 : size, LANE - 1.5);
      if (size > 46) {
        pen.fillStyle = colour("paper");
        const begin = Math.max(from, inside.left);
        pen.fillText(cut(chart.labels[label[i]], Math.min(from + size, inside.left + inside.width) - begin - 6), begin + 3, y + 10);
      }
    }
    pen.restore();
    readout.textContent = `Cycles ${full(Math.floor(view.begin))} to ${full(Math.ceil(view.end))} of ${full(view.whole)}. ${hints[Number(crowded)]}`;
  };
  const again = redrawn(plot, draw);
  time.listen(() => { cancelAnimationFrame(drawn); drawn = requestAnimationFrame(again); });

  canvas.addEventListener("pointermove", (event) => {
    const { left, width } = place();
    const cycle = view.begin + ((event.offsetX - left) / width) * (view.end - view.begin);
    if (crowded) {
      const r = tops.findIndex((top, one) => event.offsetY >= top && event.offsetY <= top + depth[one] * LANE);
      const p = Math.floor(event.offsetX - left);
      if (r < 0 || p < 0 || p >= over.work[r].length) return;
      const layer = over.layer[r][p];
      readout.textContent = `Around cycle ${full(Math.floor(cycle))}: ${chart.rows[r]} works in ` +
        `${(100 * over.work[r][p]).toFixed(0)} % of the time${layer < 0 ? "" : `, most for ${chart.labels[layer]}`}.`;
      return;
    }
    const slack = ((view.end - view.begin) / width) * 1.5;
    let best = -1;
    for (let i = 0; i < row.length; i++) {
      const y = tops[row[i]] + lane[i] * LANE;
      if (event.offsetY < y || event.offsetY > y + LANE || cycle < start[i] - slack || cycle > start[i] + cycles[i] + slack) continue;
      if (best < 0 || (cycle >= start[i] && cycle < start[i] + cycles[i])) best = i;
    }
    if (best < 0) return;
    const many = count[best] > 1;
    const what = many ? `${full(count[best])} instructions, one runs in ${(100 * active[best] / cycles[best]).toFixed(1)} % of the cycles`
      : chart.texts[text[best]];
    readout.textContent = `${chart.rows[row[best]]}, ${chart.labels[label[best]] || "no layer"}: ${what}. ` +
      `Cycles ${full(start[best])} to ${full(start[best] + cycles[best] - 1)} (${full(cycles[best])}).`;
  });
};
