// What all charts share: elements, axes, numbers as text, tips, and time that several charts show.
const charts = {};

const SVG = "http://www.w3.org/2000/svg";

/** A new SVG element in a parent. Text is set as text, never as HTML. */
function svg(parent, name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.appendChild(made);
  return made;
}

/** A new HTML element in a parent. */
function html(parent, name, attributes = {}, text = null) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.appendChild(made);
  return made;
}

/** The value of a colour of the style sheet, by its number or name. */
function colour(key) {
  const name = typeof key === "number" ? `--c${key % 8}` : `--${key}`;
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A colour for the n-th of many things; neighbours differ most. */
function hue(n) {
  return `hsl(${(n * 137.508 + 205) % 360} 52% ${colour("fill")})`;
}

/** A number as people read it, with so many digits; long ones with K, M, G. */
function short(value, digits = 3) {
  const size = Math.abs(value);
  for (const [unit, factor] of [["G", 1e9], ["M", 1e6], ["K", 1e3]]) {
    if (size >= factor * 0.9995) return `${+(value / factor).toPrecision(digits)}${unit}`;
  }
  return `${+value.toPrecision(digits)}`;
}

/** Numbers of an axis, each with its text: digits enough that no two look the same. */
function labelled(values) {
  let digits = 3;
  const texts = () => values.map((value) => short(value, digits));
  while (digits < 15 && new Set(texts()).size < values.length) digits++;
  return texts().map((text, index) => [values[index], text]);
}

/** A number in full. */
function full(value) {
  return Number.isInteger(value) ? value.toLocaleString("en") : `${+value.toPrecision(5)}`;
}

/** Round numbers between two ends, about so many. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => power * factor >= rough) || 10);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(+at.toPrecision(12));
  return found;
}

/** 1, 2, 5 times powers of ten between two ends; only the powers where there are many. */
function logTicks(low, high, count) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1; power++) {
    for (const factor of [1, 2, 5]) all.push([factor, +(factor * 10 ** power).toPrecision(6)]);
  }
  const inside = all.filter(([, at]) => at >= low * 0.999 && at <= high * 1.001);
  const few = inside.length > count ? inside.filter(([factor]) => factor === 1) : inside;
  return few.map(([, at]) => at);
}

/** From numbers of one range to numbers of another. */
function scale(low, high, from, to, log = false) {
  const f = log ? Math.log : (x) => x;
  const a = f(low), b = f(high) - a || 1;
  return (value) => from + ((f(value) - a) / b) * (to - from);
}

const FONT = '12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const ruler = document.createElement("canvas").getContext("2d");

/** The width of a text of charts in pixels. */
function wide(text) {
  ruler.font = FONT;
  return ruler.measureText(text).width;
}

/** A text cut to a width in pixels. */
function cut(text, width) {
  if (wide(text) <= width) return text;
  let [low, high] = [0, text.length]; // so many characters fit
  while (low < high - 1) {
    const middle = (low + high) >> 1;
    if (wide(`${text.slice(0, middle)}…`) <= width) low = middle; else high = middle;
  }
  return low ? `${text.slice(0, low)}…` : "";
}

/** Where an event happened, from the corner of an element. */
function within(element, event) {
  const place = element.getBoundingClientRect();
  return [event.clientX - place.left, event.clientY - place.top];
}

/** A box with text near the pointer. */
function tip(plot) {
  const box = html(plot, "div", { class: "tip", role: "status" });
  box.hidden = true;
  return {
    show(x, y, text) {
      box.textContent = text;
      box.hidden = false;
      const left = Math.min(Math.max(0, x + 12), plot.clientWidth - box.offsetWidth);
      box.style.left = `${Math.max(0, left)}px`;
      box.style.top = `${y + 16}px`;
    },
    hide() { box.hidden = true; },
  };
}

/** Names with their colours. */
function legend(plot, entries) {
  const list = html(plot, "ul", { class: "legend" });
  for (const [name, value] of entries) {
    const entry = html(list, "li");
    html(entry, "i").style.background = value;
    entry.appendChild(document.createTextNode(name));
  }
}

/** Draw now, and again when the width or the colours change. What has no width yet is drawn when it gets some. */
function redrawn(plot, draw) {
  let width = 0;
  const again = () => {
    width = plot.clientWidth;
    if (width) draw(width);
  };
  new ResizeObserver(() => { if (plot.clientWidth !== width) again(); }).observe(plot);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  again();
  return again;
}

// ---- time that several charts show --------------------------------------------------------------

const links = {};

/** The part of the time that is shown; charts with the same name share one. */
function timeOf(name, end) {
  const key = name || Symbol("own");
  links[key] ||= { begin: 0, end, whole: end, listeners: [] };
  const view = links[key];
  return {
    view,
    set(begin, stop) {
      const least = Math.min(20, view.whole);
      const length = Math.min(view.whole, Math.max(least, stop - begin));
      const middle = (begin + stop) / 2;
      view.begin = Math.max(0, Math.min(view.whole - length, stop - begin < least ? middle - length / 2 : begin));
      view.end = view.begin + length;
      for (const listener of view.listeners) listener();
    },
    listen(listener) { view.listeners.push(listener); },
  };
}

/** Buttons to zoom, and the pointer and keys of an element that shows time. */
function timeControls(element, time, place) {
  const { view } = time;
  const zoom = (factor, at = (view.begin + view.end) / 2) =>
    time.set(at - (at - view.begin) * factor, at + (view.end - at) * factor);
  const move = (part) => {
    const length = view.end - view.begin;
    const begin = Math.max(0, Math.min(view.whole - length, view.begin + part * length));
    time.set(begin, begin + length);
  };
  const cycleAt = (x) => {
    const { left, width } = place();
    return view.begin + ((x - left) / width) * (view.end - view.begin);
  };
  element.addEventListener("keydown", (event) => {
    const action = {
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5),
      "-": () => zoom(2), "0": () => time.set(0, view.whole),
    }[event.key];
    if (action) { action(); event.preventDefault(); }
  });
  element.addEventListener("wheel", (event) => {
    if (!(event.ctrlKey || event.shiftKey || document.activeElement === element)) return;
    event.preventDefault();
    zoom(2 ** ((event.deltaY || event.deltaX) / 300), cycleAt(event.offsetX));
  }, { passive: false });
  element.addEventListener("dblclick", (event) => zoom(0.4, cycleAt(event.offsetX)));
  const down = new Map();
  element.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, event.offsetX);
    element.setPointerCapture(event.pointerId);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    element.addEventListener(name, (event) => down.delete(event.pointerId));
  }
  element.addEventListener("pointermove", (event) => {
    if (!down.has(event.pointerId)) return;
    const before = down.get(event.pointerId), now = event.offsetX;
    if (down.size === 1) {
      move(-(now - before) / place().width);
    } else { // two fingers: what lies between them stays between them
      const other = [...down].find(([id]) => id !== event.pointerId)[1];
      zoom(Math.min(4, Math.max(0.25, Math.abs(before - other) / Math.max(8, Math.abs(now - other)))), cycleAt(other));
    }
    down.set(event.pointerId, now);
  });
  return { zoom, move };
}

/** Buttons above a chart of time. */
function timeButtons(plot, time, actions) {
  const bar = html(plot, "div", { class: "controls" });
  const add = (label, title, act) => html(bar, "button", { type: "button", title }, label).addEventListener("click", act);
  add("Zoom in", "also: double click, +, Ctrl and wheel", () => actions().zoom(0.5));
  add("Zoom out", "also: -", () => actions().zoom(2));
  add("◀", "earlier", () => actions().move(-0.4));
  add("▶", "later", () => actions().move(0.4));
  add("Whole run", "also: 0", () => time.set(0, time.view.whole));
  return bar;
}

/** Grid and labels of an axis of cycles; y is where the labels stand. */
function timeAxis(root, view, left, width, top, bottom) {
  const x = scale(view.begin, view.end, left, left + width);
  for (const [at, text] of labelled(ticks(view.begin, view.end, width / 90))) {
    svg(root, "line", { x1: x(at), x2: x(at), y1: top, y2: bottom, class: "grid" });
    svg(root, "text", { x: x(at), y: bottom + 15, "text-anchor": "middle", class: "soft" }, text);
  }
  svg(root, "text", { x: left + width, y: bottom + 31, "text-anchor": "end", class: "soft" }, "cycles");
  return x;
}
