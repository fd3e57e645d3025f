// Two designs side by side, each with its facts and a text to copy. What is chosen in another chart comes first, and what was first moves aside.
charts.designs = (plot, chart) => {
  const beside = html(plot, "div", { class: "beside" });
  const sides = [0, 1].map((side) => {
    const box = html(beside, "div");
    const bar = html(box, "div", { class: "controls" });
    const select = html(bar, "select", { "aria-label": side ? "The other design" : "The design" });
    chart.designs.forEach((design, number) => html(select, "option", { value: String(number) }, design.name));
    const copy = html(bar, "button", { type: "button" }, "Copy the TOML");
    const facts = html(box, "dl", { class: "facts" });
    const text = html(box, "pre", { tabindex: 0 });
    const show = () => {
      const design = chart.designs[Number(select.value)];
      facts.replaceChildren();
      for (const [name, value] of Object.entries(design.facts)) {
        const pair = html(facts, "div");
        html(pair, "dt", {}, name);
        html(pair, "dd", {}, value);
      }
      text.textContent = design.text;
    };
    select.addEventListener("change", show);
    copy.addEventListener("click", () => {
      const range = document.createRange();
      range.selectNodeContents(text);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      copy.textContent = document.execCommand("copy") ? "Copied" : "Selected: copy it";
    });
    select.value = String(Math.min(side, chart.designs.length - 1));
    show();
    return { select, show };
  });
  document.addEventListener("chosen", (event) => {
    const number = chart.designs.findIndex((design) => design.name === event.detail.name);
    if (number < 0 || sides[0].select.value === String(number)) return;
    sides[1].select.value = sides[0].select.value;
    sides[0].select.value = String(number);
    for (const side of sides) side.show();
  });
};
