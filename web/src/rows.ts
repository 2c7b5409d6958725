// Rows that were held out, with what the model at hand says of them; their values can be edited.

import type { Column, PageData, Sample } from "./data";
import { button, element, short } from "./dom";
import { largest, Path, predict } from "./model";
import { shortened, type Reading, type Section } from "./sections";

const MOST_CLASSES = 12;
const MOST_COLUMNS = 24;

/** Where the features of a row are edited. */
interface Editor {
  nodes: HTMLElement[];
  /** The features as they are now, or why there are none. */
  read: () => ArrayLike<number> | string;
  reset: () => void;
}

/** Days since 1970 of an ISO date; UTC where it names no offset, as in the command. */
function days(text: string): number {
  const found = /^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[-+]\d\d:?\d\d)?)?$/i.exec(text);
  if (!found) return NaN;
  return Date.parse(found[1] && !found[4] ? `${text.replace(" ", "T")}Z` : text) / 86_400_000;
}

/** A number in decimal digits: the command takes no others. */
export const numberOf = (text: string): number => (/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) ? Number(text) : NaN);

/** What a cell shows for its column, and what is written from it into the features; false where that cannot be. */
function cell(column: Column, features: number[]): { input: HTMLInputElement | HTMLSelectElement; write: (to: Float64Array) => boolean } {
  const { first, name, mean, values } = column;
  const own = features[first]!;
  if (column.kind === "categorical") {
    const none = element("option", { value: -1 }, "(other)");
    const input = element("select", { "aria-label": name }, none, ...values.map((value, i) => element("option", { value: i }, shortened(value))));
    input.value = String(values.findIndex((_, i) => features[first + i] === 1));
    const write = (to: Float64Array) => {
      values.forEach((_, i) => {
        to[first + i] = Number(input.value) === i ? 1 : 0;
      });
      return true;
    };
    return { input, write };
  }
  if (column.kind === "boolean" && (own === 0 || own === 1)) {
    const input = element("select", { "aria-label": name }, element("option", { value: 0 }, "false"), element("option", { value: 1 }, "true"));
    input.value = String(own);
    return { input, write: (to) => Number.isFinite((to[first] = Number(input.value))) };
  }
  const date = column.kind === "date";
  const value = date ? days : numberOf;
  const input = element("input", { type: "text", size: date ? 11 : 7, autocomplete: "off", spellcheck: "false", "aria-label": name });
  input.value = date ? new Date(own * 86_400_000).toISOString().replace(/T00:00:00\.000Z$/, "") : String(Number(own.toPrecision(12)));
  const start = input.value;
  const write = (to: Float64Array) => {
    const text = input.value.trim();
    // (The text is rounded. A missing value becomes the mean, where it does so in the command.)
    const number = text === start ? own : text === "" ? (mean ?? NaN) : value(text);
    to[first] = number;
    return Number.isFinite(number);
  };
  return { input, write };
}

/** Cells for the columns that matter most; text alone where nothing follows from a change. */
function cells(columns: Column[], sample: Sample, changed: (() => void) | null): Editor {
  const all = columns.map((column) => cell(column, sample.features));
  const inputs = all.map(({ input }) => input);
  if (!changed) {
    const text = (input: (typeof inputs)[number]) => ("selectedOptions" in input ? input.selectedOptions[0]?.textContent ?? "" : input.value);
    return { nodes: inputs.map((input) => element("td", {}, text(input))), read: () => sample.features, reset: () => undefined };
  }
  const start = inputs.map((input) => input.value);
  inputs.forEach((input) => {
    input.addEventListener("input", changed);
  });
  return {
    nodes: inputs.map((input) => element("td", {}, input)),
    read: () => {
      const features = Float64Array.from(sample.features);
      const wrong = all.filter(({ input, write }) => {
        const bad = !write(features);
        if (bad) input.setAttribute("aria-invalid", "true");
        else input.removeAttribute("aria-invalid");
        return bad;
      });
      return wrong.length === 0 ? features : "not a value";
    },
    reset: () => {
      inputs.forEach((input, i) => {
        input.value = start[i]!;
      });
    },
  };
}

/** A picture that can be painted on, where something follows from it. */
function canvas(sample: Sample, [height, width]: [number, number], changed: (() => void) | null): Editor {
  const features = Float64Array.from(sample.features);
  const top = features.reduce((top, value) => Math.max(top, value), 1e-300);
  const name = `row ${sample.row + 1} as a picture`;
  const node = element("canvas", {
    width, height, class: changed ? "row-picture painted" : "row-picture", role: changed ? "application" : "img", tabindex: changed ? 0 : null,
    "aria-label": changed ? `${name}: draw with the pointer, or move with the arrow keys and paint with the space bar` : name,
  });
  let cursor = -1;
  const draw = () => {
    const pen = node.getContext("2d")!;
    const image = pen.createImageData(width, height);
    features.forEach((value, i) => {
      const ink = i === cursor ? [213, 94, 0, 255] : [128, 128, 128, Math.round((255 * Math.max(0, value)) / top)];
      image.data.set(ink, 4 * i);
    });
    pen.putImageData(image, 0, 0);
  };
  draw();
  if (!changed) return { nodes: [element("td", {}, node)], read: () => features, reset: () => undefined };
  const paint = (at: number, ink: number) => {
    if (at < 0 || at >= features.length || features[at] === ink) return;
    features[at] = ink;
    draw();
    changed();
  };
  const under = (event: PointerEvent) => {
    const [x, y] = [Math.floor((event.offsetX / node.clientWidth) * width), Math.floor((event.offsetY / node.clientHeight) * height)];
    return x >= 0 && x < width && y >= 0 && y < height ? y * width + x : -1;
  };
  const other = (at: number) => (features[at]! > top / 2 ? 0 : top);
  let ink = 0;
  node.addEventListener("pointerdown", (event) => {
    node.setPointerCapture(event.pointerId);
    ink = other(under(event));
    paint(under(event), ink);
  });
  node.addEventListener("pointermove", (event) => {
    if (event.buttons > 0) paint(under(event), ink);
  });
  node.addEventListener("keydown", (event) => {
    const steps: Record<string, number | undefined> = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width, " ": 0 };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    if (step === 0) paint(cursor, other(cursor));
    else cursor = cursor < 0 ? 0 : Math.min(Math.max(cursor + step, 0), features.length - 1);
    draw();
  });
  node.addEventListener("blur", () => {
    cursor = -1;
    draw();
  });
  return {
    nodes: [element("td", {}, node)],
    read: () => features,
    reset: () => {
      features.set(sample.features);
      draw();
    },
  };
}

/** What the model at hand says of a row with these features. */
type Says = (features: ArrayLike<number>) => number[];

/** One row: its editor, its truth, and what the model at hand says of it. */
function line(data: PageData, columns: Column[], sample: Sample): { node: HTMLElement; update: (says: Says) => void } {
  const found = element("td", { class: "found" });
  let says: Says | null = null;
  const show = () => {
    if (!says) return;
    const features = editor.read();
    found.replaceChildren(typeof features === "string" ? features : said(data, says(features), sample.truth));
  };
  const changed = data.scores ? null : show;
  const editor = data.image ? canvas(sample, data.image, changed) : cells(columns, sample, changed);
  const reset = button("reset", () => {
    editor.reset();
    show();
  }, `reset row ${sample.row + 1}`);
  const node = element(
    "tr",
    {},
    element("th", { scope: "row" }, String(sample.row + 1)),
    ...editor.nodes,
    element("td", {}, shortened(sample.truth)),
    found,
    changed && element("td", {}, reset),
  );
  return {
    node,
    update: (now) => {
      says = now;
      show();
    },
  };
}

/** A prediction in words: the number, or the classes with their shares (the likeliest alone, where the model has no shares). */
function said(data: PageData, numbers: number[], truth: string): Node {
  const { classes } = data;
  if (!classes) return element("span", { "data-value": numbers.join(" ") }, numbers.map((number) => short(number, 6)).join(", "));
  const order = numbers.map((_, at) => at).sort((a, b) => numbers[b]! - numbers[a]!);
  const first = order[0]!;
  if (data.model !== "softmax") return element("b", { class: classes[first] === truth ? "right" : "wrong" }, classes[first]!);
  const items = order.slice(0, MOST_CLASSES).filter((at) => numbers[at]! >= 0.0005 || at === first).map((at) => {
    const bar = element("i");
    bar.style.width = `${Math.max(1, 60 * numbers[at]!)}px`;
    const share = element("span", { class: "share", "data-value": numbers[at]! }, (100 * numbers[at]!).toFixed(1) + " %");
    return element("li", { class: classes[at] === truth ? "right" : null }, element("span", {}, shortened(classes[at]!, 20)), bar, share);
  });
  return element("ul", { class: classes.length === 2 ? "probabilities two" : "probabilities" }, ...items);
}

export function rowsEditor(data: PageData, path: Path | null, best: number): Section {
  // What a kernel model says of each row is known; any other model is asked.
  const scores = data.scores && new Path(data.scores);
  // Of many columns, those that matter most at the best λ.
  const weights = scores ? null : path!.at(best).weights;
  const weight = ({ first, values }: Column) => {
    let top = 0;
    for (let output = 0; weights && output < path!.outputs; output++) {
      for (let i = first; i < first + Math.max(1, values.length); i++) top = Math.max(top, Math.abs(weights[output * path!.features + i]!));
    }
    return top;
  };
  const chosen = new Set(largest(MOST_COLUMNS, data.columns.length, (at) => weight(data.columns[at]!)));
  const columns = data.columns.filter((_, at) => chosen.has(at));
  const lines = data.samples.map((sample) => line(data, columns, sample));
  const names = data.image ? ["picture"] : columns.map(({ name }) => shortened(name, 20));
  const head = ["row", ...names, shortened(data.target ?? "truth", 20), "prediction"].map((name) => element("th", { scope: "col" }, name));
  const grid = element("table", { class: "rows" }, element("thead", {}, element("tr", {}, ...head, scores ? null : element("td"))), element("tbody", {}, ...lines.map(({ node }) => node)));
  const which = data.samples_seen ? "Some rows of the table (the model at hand has seen them in training)" : "Some of the rows held out";
  const few = columns.length < data.columns.length && !data.image ? ` The ${scores ? "first " : ""}${columns.length} of ${data.columns.length} columns${scores ? "" : " with the largest weights"} are shown.` : "";
  const hint = scores
    ? `Their values cannot be changed here: that takes every training row.${few}`
    : data.image
    ? "Paint on a picture and the prediction follows."
    : `Edit a value and the prediction follows${data.columns.some(({ mean }) => mean !== null) ? "; an empty cell is a missing value" : ""}.${few}`;
  const node = element(
    "div",
    {},
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "rows" }, grid),
    element("p", { class: "caption" }, `${which}, and what the model at hand says of them. ${hint}`),
  );
  const update = ({ l2, model }: Reading) => {
    const known = scores?.at(l2).weights;
    const each = (known?.length ?? 0) / lines.length;
    lines.forEach((line, at) => {
      if (known) line.update(() => Array.from(known.subarray(at * each, (at + 1) * each)));
      else if (model) line.update((features) => predict(data.model!, model, features));
    });
  };
  return { title: data.samples_seen ? "Rows" : "Rows held out", node, update, size: data.image ? "tall" : "wide" };
}
