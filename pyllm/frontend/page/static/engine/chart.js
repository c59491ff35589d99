// A line chart in SVG whose nodes are made once: an update only moves them. Pointer and arrow keys read values.

import { element, svg, write } from "../dom.js";

const HEIGHT = 120;
const MARGIN = { top: 8, right: 4, bottom: 18, left: 44 };
const NUM_LINES = 4; // across, above the base

export class Chart {
  #width = 0;
  #at = null; // index of the value that is read

  // `lines` have a `name` and a `label`; `format` makes a text of a value; the scale reaches at least to `least`.
  constructor(title, lines, format, least) {
    this.lines = lines;
    this.format = format;
    this.least = least;
    this.values = lines.map(() => element("span", { class: "value" }, "–"));
    this.when = element("span", { class: "when" });
    const legend = lines.map(({ label }, index) =>
      element(
        "span",
        { class: `key line-${index}` },
        element("i", { "aria-hidden": "true" }),
        `${label} `,
        this.values[index],
      )
    );
    this.rules = Array.from({ length: NUM_LINES + 1 }, () => svg("line", { class: "rule" }));
    this.marks = Array.from({ length: NUM_LINES + 1 }, () => svg("text", { class: "mark", "text-anchor": "end" }));
    this.span = svg("text", { class: "mark" });
    this.empty = svg("text", { class: "mark", "text-anchor": "middle", y: HEIGHT / 2 });
    write(this.empty, "Nothing measured yet");
    this.paths = lines.map((_, index) => svg("path", { class: `path line-${index}` }));
    this.cursor = svg("line", { class: "cursor", visibility: "hidden" });
    this.picture = svg(
      "svg",
      {
        class: "picture",
        height: HEIGHT,
        role: "img",
        tabindex: "0",
        "aria-label": title,
        pointermove: (event) => this.#read(this.#indexAt(event.offsetX)),
        pointerleave: () => this.#read(null),
        blur: () => this.#read(null),
        keydown: (event) => this.#key(event),
      },
      ...this.rules,
      ...this.marks,
      this.span,
      this.empty,
      ...this.paths,
      this.cursor,
    );
    this.title = title;
    this.root = element(
      "section",
      { class: "panel chart", "aria-label": title },
      element("div", { class: "panel-title" }, element("h2", {}, title), this.when),
      element("div", { class: "legend" }, ...legend),
      this.picture,
    );
    this.observer = new ResizeObserver(([entry]) => {
      this.#width = entry.contentRect.width;
      if (this.data) this.update(this.data);
    });
    this.observer.observe(this.picture);
  }

  update(data) {
    this.data = data;
    this.#legend();
    if (!this.#width) return;
    this.#scale();
    this.lines.forEach(({ name }, index) => this.paths[index].setAttribute("d", this.#path(data.series[name])));
    this.#moveCursor();
  }

  #scale() {
    const { data } = this;
    let most = 0;
    for (const { name } of this.lines) {
      for (let index = 0; index < data.length; index += 1) {
        if (data.series[name][index] > most) most = data.series[name][index];
      }
    }
    const isEmpty = this.lines.every(({ name }) => data.series[name].subarray(0, data.length).every(Number.isNaN));
    this.empty.setAttribute("visibility", isEmpty ? "visible" : "hidden");
    set(this.empty, { x: this.#width / 2 });
    this.most = rounded(Math.max(most, this.least));
    this.begin = data.times[0];
    this.end = Math.max(data.times[data.length - 1], this.begin + 60_000);
    for (let line = 0; line <= NUM_LINES; line += 1) {
      const value = (this.most * line) / NUM_LINES;
      const y = this.#y(value);
      set(this.rules[line], { x1: MARGIN.left, x2: this.#width - MARGIN.right, y1: y, y2: y });
      set(this.marks[line], { x: MARGIN.left - 6, y: y + 4 });
      write(this.marks[line], isEmpty ? "" : this.format(value));
    }
    set(this.span, { x: MARGIN.left, y: HEIGHT - 4 });
    const minutes = Math.round((this.end - this.begin) / 60_000);
    write(this.span, `${minutes} min${this.end > data.times[data.length - 1] ? "" : " ago"}`);
  }

  // Draws the lowest and the highest value in each column of pixels: a long time costs no more than a short one.
  #path(values) {
    let path = "";
    let isOpen = false;
    for (let index = 0; index < this.data.length;) {
      const x = Math.round(this.#x(index));
      let [low, high] = [values[index], values[index]];
      for (index += 1; index < this.data.length && Math.round(this.#x(index)) === x; index += 1) {
        if (values[index] < low || Number.isNaN(low)) low = values[index];
        if (values[index] > high || Number.isNaN(high)) high = values[index];
      }
      if (Number.isNaN(low)) {
        isOpen = false;
        continue;
      }
      const top = tenths(this.#y(high));
      path += `${isOpen ? "L" : "M"}${x} ${top}`;
      if (low < high) path += `V${tenths(this.#y(low))}`;
      else if (!isOpen) path += "h2"; // A value alone must be seen, too.
      isOpen = true;
    }
    return path;
  }

  #x(index) {
    const share = (this.data.times[index] - this.begin) / (this.end - this.begin);
    return MARGIN.left + share * (this.#width - MARGIN.left - MARGIN.right);
  }

  #y(value) {
    return HEIGHT - MARGIN.bottom - (value / this.most) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  }

  #indexAt(x) {
    const { data } = this;
    if (!data?.length || !this.#width) return null;
    const time = this.begin +
      ((x - MARGIN.left) / (this.#width - MARGIN.left - MARGIN.right)) * (this.end - this.begin);
    let index = 0;
    while (index < data.length - 1 && data.times[index + 1] <= time) index += 1;
    return index;
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.data?.length) return;
    event.preventDefault();
    this.#read(Math.min(this.data.length - 1, Math.max(0, (this.#at ?? this.data.length - 1) + step)));
    this.picture.setAttribute("aria-label", this.#spoken());
  }

  #spoken() {
    const texts = this.lines.map(({ label }, index) => `${label} ${this.values[index].textContent}`);
    return `${this.title}, ${this.when.textContent || "now"}: ${texts.join(", ")}`;
  }

  #read(index) {
    this.#at = index;
    this.#moveCursor();
    this.#legend();
  }

  #moveCursor() {
    const isShown = this.#at !== null && this.#at < this.data.length && this.#width > 0;
    this.cursor.setAttribute("visibility", isShown ? "visible" : "hidden");
    if (isShown) {
      set(this.cursor, { x1: this.#x(this.#at), x2: this.#x(this.#at), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
    }
  }

  #legend() {
    if (!this.data) return;
    const index = this.#at ?? this.data.length - 1;
    this.lines.forEach(({ name }, line) => {
      const value = index < 0 ? NaN : this.data.series[name][index];
      write(this.values[line], Number.isNaN(value) ? "–" : this.format(value));
    });
    write(this.when, this.#at === null ? "" : new Date(this.data.times[index]).toLocaleTimeString());
  }
}

// The next number that four lines divide well: 1, 2, 4, 8 or 10 times a power of ten.
function rounded(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 8, 10].find((step) => most <= step * power * (1 + 1e-9)) * power;
}

function tenths(value) {
  return Math.round(value * 10) / 10;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
}
