// What moves with the strength: curves, weights, counts.

import { areaY, axisX, barX, dot, line, ruleX, ruleY, type Markish } from "@observablehq/plot";

import { AT_HAND, Chart, COLORS } from "./charts";
import type { PageData, Row } from "./data";
import { element, short } from "./dom";
import type { Judged, Numbers } from "./judged";
import { largest, type Model, type Path } from "./model";

/** What the page shows at one strength. */
export interface Reading {
  l2: number;
  /** The strength next to it that something is known of, and its number in the page's list. */
  nearest: Row;
  place: number;
  /** Whether it is that strength. */
  judged: boolean;
  model: Model | null;
}

export interface Section {
  title: string;
  node: HTMLElement;
  update: (reading: Reading) => void;
  /** When other strengths are known than before. */
  renew?: () => void;
  /** Across both columns, or about as tall as two others. */
  size?: "wide" | "tall";
}

const MOST_BARS = 20;
const MOST_TRACES = 40;
const NAMED = 8;

/** What each output is for. (Of two classes, the one output is for the second.) */
export const outputs = (data: PageData, count: number): string[] => {
  const { classes } = data;
  if (classes?.length === 2 && count === 1) return [classes[1]!];
  const target = data.target ?? "target";
  return classes ?? Array.from({ length: count }, (_, at) => (count > 1 ? `${target} ${at + 1}` : target));
};

const marked = (row: Row | null, color: string): Markish | null => row && ruleX([row.l2], { stroke: color, strokeDasharray: "5 4" });

const strength = ([low, high]: [number, number]) => ({
  type: "log", label: "λ", labelOffset: 36, domain: low < high ? [low, high] : [low / 2, 2 * high], tickFormat: (value: number) => short(value), ticks: 6,
} as const);

/** Whether values are positive and far enough apart for a logarithmic axis. */
const far = (values: number[]): boolean => Math.min(...values) > 0 && Math.max(...values) > 5 * Math.min(...values);

function overStrengths(title: string, caption: string, judged: Judged, range: [number, number], draw: () => { marks: (Markish | null)[]; y: object }, legend: [string, string][] = []): Section {
  const chart = new Chart(
    title,
    caption,
    () => {
      const { marks, y } = draw();
      return { marks: marks.filter((mark) => mark !== null), x: strength(range), y: { grid: true, ticks: 6, tickFormat: (value: number) => short(value), ...y } };
    },
    true,
    judged.best?.l2 ?? range[0],
    legend,
  );
  return { title, node: chart.node, update: ({ l2 }) => { chart.update(l2); }, renew: () => { chart.redraw(); } };
}

export function lossChart(data: PageData, judged: Judged, range: [number, number]): Section | null {
  if (!judged.has("validation_loss") && !judged.has("train_loss")) return null;
  const draw = () => {
    const rows = judged.rows;
    const losses = rows.flatMap((row) => [row.train_loss, row.validation_loss]).filter((loss) => typeof loss === "number");
    const type = far(losses) ? "log" : "linear";
    // Bands may reach far beyond what the curves show.
    const [low, high] = [Math.min(...losses), Math.max(...losses)];
    const floor = type === "log" ? low / 1.5 : low - 0.1 * (high - low);
    const ceiling = type === "log" ? 1.2 * high : high + 0.1 * (high - low);
    const within = (value: number) => Math.min(Math.max(value, floor), ceiling);
    const band = (of: "validation_loss" | "train_loss", by: "validation_error" | "excess", fill: string, fillOpacity: number) =>
      areaY(rows.filter((row) => typeof row[of] === "number" && (row[by] ?? 0) > 0), {
        x: "l2", y1: (row: Row) => within(row[of]! - row[by]!), y2: (row: Row) => within(row[of]! + row[by]!), fill, fillOpacity, clip: true,
      });
    return {
      marks: [
        band("train_loss", "excess", "#888", 0.3),
        band("validation_loss", "validation_error", COLORS[0]!, 0.2),
        marked(judged.oneSe, COLORS[5]!),
        marked(judged.best, COLORS[2]!),
        line(judged.with("train_loss"), { x: "l2", y: "train_loss", stroke: "#888", strokeWidth: 2 }),
        line(judged.with("validation_loss"), { x: "l2", y: "validation_loss", stroke: COLORS[0]!, strokeWidth: 2.5 }),
        dot(judged.with("validation_loss"), {
          x: "l2", y: "validation_loss", r: 2.5, fill: COLORS[0]!,
          title: (row: Row) => `λ ${short(row.l2)}: validation ${short(row.validation_loss)} ± ${short(row.validation_error, 2)}, training ${short(row.train_loss)}`,
        }),
      ],
      y: { type, label: data.loss, domain: [floor, ceiling] },
    };
  };
  return overStrengths(
    "Loss against λ",
    `Mean loss, without the penalty. Blue band: one standard error${data.samples_seen ? " over the folds" : ""}; gray band: how far the certificate lets the model's loss be from the exact one's.`,
    judged, range, draw,
    [[COLORS[0]!, "validation"], ...(judged.has("train_loss") ? [["#888", "training"] as [string, string]] : []), [COLORS[2]!, "best λ"], [COLORS[5]!, "1-SE λ"], [AT_HAND, "λ at hand"]],
  );
}

export function scoreChart(data: PageData, judged: Judged, range: [number, number]): Section | null {
  const all: [Numbers, string][] = [["validation_score", data.score ?? "score"], ["validation_accuracy", "accuracy"], ["validation_r2", "R²"]];
  const found = all.find(([of]) => judged.has(of)) ?? (data.live ? all[0]! : null);
  if (!found) return null;
  const [of, name] = found;
  const title = data.model === null || data.live ? "Score against λ" : `Validation ${name} against λ`;
  const draw = () => {
    const shown = judged.with(of);
    const values = shown.map((row) => row[of]!);
    // An R² far below zero would flatten everything worth seeing.
    const top = Math.max(...values);
    const bottom = of === "validation_r2" ? Math.max(Math.min(...values), top - 1) : Math.min(...values);
    const pad = 0.05 * (top - bottom || Math.abs(top) || 1);
    return {
      marks: [
        marked(judged.oneSe, COLORS[5]!),
        marked(judged.best, COLORS[2]!),
        line(shown, { x: "l2", y: of, stroke: COLORS[0]!, strokeWidth: 2.5, clip: true }),
        dot(shown, { x: "l2", y: of, r: 3, fill: COLORS[0]!, clip: true, title: (row: Row) => `λ ${short(row.l2)}: ${short(row[of])}` }),
      ],
      y: shown.length > 0 ? { label: name, domain: [bottom - pad, top + pad] } : { label: name, domain: [0, 1] },
    };
  };
  const caption = data.live ? "Every strength that was evaluated." : data.model === null ? "Of the models as the evaluation command scores them." : "On the rows held out.";
  return overStrengths(title, caption, judged, range, draw, [
    ...(data.best !== null || data.live ? [[COLORS[2]!, "best λ"] as [string, string]] : []),
    ...(data.one_se !== null ? [[COLORS[5]!, "1-SE λ"] as [string, string]] : []),
    [AT_HAND, "λ at hand"],
  ]);
}

/** What a run or a dial knows of a strength before anyone evaluates it. */
export function runCharts(judged: Judged, range: [number, number]): Section[] {
  const of = (title: string, caption: string, of: "remaining" | "error", y: object): Section | null => {
    if (!judged.has(of)) return null;
    const draw = () => ({ marks: [line(judged.with(of), { x: "l2", y: of, stroke: COLORS[0]!, strokeWidth: 2.5 })], y });
    return overStrengths(title, caption, judged, range, draw);
  };
  const errors = judged.with("error").map((row) => row.error!);
  return [
    of("Mass that no step has spent", "Near 1, λ is too small to have an effect on this run; near 0, all of its mass is spent.", "remaining", { label: "share", domain: [0, 1] }),
    of("How far a reading can be off", "Certified: no weight is further than this from the average that it stands for.", "error",
      { label: "largest error of a weight", type: errors.length > 0 && far(errors) ? "log" : "linear" }),
  ].filter((section) => section !== null);
}

/** Red and blue, as pixels are kept: alpha, blue, green, red. (No browser runs on a machine that has bytes the other way around.) */
const [FOR, AGAINST] = [0x2d27c1, 0xa05000];

/** The weights of each class as a picture. */
export function templates(data: PageData, path: Path): Section {
  const [height, width] = data.image!;
  const pictures = outputs(data, path.outputs).map((name) => {
    const canvas = element("canvas", { width, height, role: "img", "aria-label": `weights of ${name}` });
    const pen = canvas.getContext("2d")!;
    const image = pen.createImageData(width, height);
    return { pen, image, pixels: new Uint32Array(image.data.buffer), node: element("div", {}, canvas, element("span", {}, name)) };
  });
  const node = element(
    "figure",
    {},
    element("div", { class: "pictures" }, ...pictures.map(({ node }) => node)),
    element("figcaption", {}, "Red pixels speak for the class, blue ones against it. One scale for all pictures: the largest weight at this λ."),
  );
  const update = ({ model }: Reading) => {
    if (!model) return;
    const { weights } = model;
    let top = 1e-300;
    for (const weight of weights) top = Math.max(top, Math.abs(weight));
    // (Plain numbers into plain places, which are kept: it runs at every frame.)
    pictures.forEach(({ pen, image, pixels }, output) => {
      for (let i = 0, from = output * width * height; i < width * height; i++) {
        const share = weights[from + i]! / top;
        const strength = Math.round(255 * Math.sqrt(Math.abs(share)));
        pixels[i] = share > 0 ? FOR | (strength << 24) : AGAINST | (strength << 24);
      }
      pen.putImageData(image, 0, 0);
    });
  };
  return { title: "Weights as pictures", node, update };
}

export function shortened(name: string, most = 24): string {
  const letters = Array.from(name);
  if (letters.length <= most) return name;
  // Columns differ at the end of their names as often as at the start.
  return [...letters.slice(0, most / 2), "…", ...letters.slice(1 - most / 2)].join("");
}

/** What the numbers of a path are. */
export const named = (data: PageData): { one: string; many: string } =>
  data.model === "kernel" ? { one: "coefficient", many: "coefficients" } : { one: "weight", many: "weights" };

/** The largest weights, by class. */
export function bars(data: PageData, path: Path): Section {
  const { one, many } = named(data);
  const unit = data.model === "kernel" ? "How much of its similarity to each training row a prediction is made of" : "In the units of the table";
  const names = outputs(data, path.outputs);
  const { features } = path;
  let output = 0;
  let weights: Float64Array | null = null;
  const chart = new Chart(
    `Largest ${many}`,
    `${unit}${features > MOST_BARS ? `; the ${MOST_BARS} largest of ${features}` : ""}.`,
    () => {
      const own = weights?.subarray(output * features, (output + 1) * features) ?? new Float64Array(features);
      const order = largest(MOST_BARS, features, (at) => Math.abs(own[at]!));
      const shown = order.map((at) => ({ name: data.features[at]!, place: String(at), weight: own[at]! }));
      const label = (place: string) => shortened(data.features[Number(place)]!);
      return {
        marks: [
          barX(shown, {
            x: "weight", y: "place", fill: (bar: { weight: number }) => (bar.weight > 0 ? COLORS[1]! : COLORS[0]!),
            title: (bar: { name: string; weight: number }) => `${bar.name}: ${short(bar.weight)}`,
          }),
          ruleX([0]),
          axisX({ anchor: "bottom", label: one, ticks: 5, tickFormat: (value: number) => short(value) }),
        ],
        y: { domain: shown.map(({ place }) => place), label: null, tickFormat: label },
        height: 50 + 18 * shown.length,
      };
    },
    false,
    0,
  );
  const choose = element("select", { "aria-label": "class" }, ...names.map((name, i) => element("option", { value: i }, shortened(name, 40))));
  let latest: Reading | null = null;
  const update = (reading: Reading) => {
    latest = reading;
    weights = reading.model?.weights ?? null;
    chart.update(reading.l2);
  };
  choose.addEventListener("change", () => {
    output = Number(choose.value);
    if (latest) update(latest);
  });
  const node = element("div", {}, names.length > 1 ? element("p", {}, `${many} of `, choose) : null, chart.node);
  return { title: `Largest ${many}`, node, update };
}

export function traces(data: PageData, path: Path, judged: Judged, range: [number, number]): Section {
  const [low, high] = range;
  const grid = Array.from({ length: 61 }, (_, i) => Math.min(Math.max(low * (high / low) ** (i / 60), low), high));
  const ends = [low, grid[30]!, high].map((l2) => path.at(l2).weights);
  const size = (at: number) => Math.max(Math.abs(ends[0]![at]!), Math.abs(ends[1]![at]!), Math.abs(ends[2]![at]!));
  const count = ends[0]!.length;
  const shown = largest(MOST_TRACES, count, size);
  const names = outputs(data, path.outputs);
  const name = (at: number) => {
    const feature = data.features[at % path.features]!;
    return names.length > 1 ? `${feature} → ${names[Math.floor(at / path.features)]!}` : feature;
  };
  const lines = shown.map((at, place) => {
    const points = path.trace(at, grid).map((weight, i) => ({ l2: grid[i]!, weight }));
    const [stroke, strokeWidth] = place < NAMED ? [COLORS[place]!, 2] : ["#8888", 1];
    return line(points, { x: "l2", y: "weight", stroke, strokeWidth, title: () => name(at) });
  }).reverse();
  const few = Math.min(NAMED, shown.length);
  const { one, many } = named(data);
  return overStrengths(
    `${many.replace(/^./, (letter) => letter.toUpperCase())} against λ`,
    `The ${shown.length} of ${count} ${many} that grow largest; the first ${few} are named.`,
    judged,
    range,
    () => ({ marks: [ruleY([0], { strokeOpacity: 0.3 }), ...lines], y: { label: one } }),
    shown.slice(0, few).map((at, place) => [COLORS[place]!, shortened(name(at), 40)]),
  );
}

/** How much each part of the run counts in the model at hand. */
export function averaging(data: PageData): Section | null {
  const { averaging } = data;
  if (!averaging) return null;
  let place = -1;
  const chart = new Chart(
    "Averaging weights over the run",
    "How much of the model at hand each part of the run is. Small λ: the end of the run; large λ: its beginning, where it started.",
    () => {
      const own = averaging.weights[place] ?? [];
      const points = own.map((weight, at) => ({ step: averaging.steps[at]!, weight }));
      return {
        marks: [
          areaY(points, { x: "step", y: "weight", fill: COLORS[0]!, fillOpacity: 0.3, curve: "step" }),
          line(points, { x: "step", y: "weight", stroke: COLORS[0]!, strokeWidth: 1.5, curve: "step" }),
          ruleY([0]),
        ],
        x: { label: "step", ticks: 6 },
        y: { label: "weight", grid: true, ticks: 5, tickFormat: (value: number) => short(value, 2) },
      };
    },
    false,
    0,
  );
  const update = ({ l2 }: Reading) => {
    const distances = averaging.l2.map((known) => Math.abs(Math.log(known / l2)));
    const nearest = distances.indexOf(Math.min(...distances));
    if (nearest === place) return;
    place = nearest;
    chart.update(l2);
  };
  return { title: "Averaging weights over the run", node: chart.node, update };
}

export function confusion(data: PageData): Section | null {
  const { classes } = data;
  if (data.confusions.length === 0 || !classes) return null;
  const cells = classes.map(() => classes.map(() => element("td")));
  const head = element("tr", {}, element("td", { class: "corner" }, "true ↓ predicted →"), ...classes.map((name) => element("th", { scope: "col" }, shortened(name, 16))));
  const lines = classes.map((name, truth) => element("tr", {}, element("th", { scope: "row" }, shortened(name, 16)), ...cells[truth]!));
  const caption = element("p", { class: "caption" });
  const grid = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "confusion matrix" }, element("table", { class: "confusion" }, head, ...lines));
  const update = ({ place, nearest }: Reading) => {
    const counts = data.confusions[place];
    if (!counts) return;
    caption.textContent = `Rows held out, at the judged λ ${short(nearest.l2)}.`;
    counts.forEach((row, truth) => {
      const total = Math.max(1, row.reduce((sum, count) => sum + count, 0));
      row.forEach((count, found) => {
        const cell = cells[truth]![found]!;
        const share = count / total;
        cell.textContent = count === 0 ? "" : String(count);
        const strong = count === 0 ? 0 : truth === found ? 0.1 + 0.35 * share : 0.12 + Math.min(0.4, 2 * share);
        cell.style.background = truth === found ? `rgba(34,136,51,${strong})` : `rgba(213,94,0,${strong})`;
      });
    });
  };
  return { title: "Confusion matrix", node: element("div", {}, grid, caption), update };
}
