// The page: one strength, and everything that follows from it.

import type { PageData, Row } from "./data";
import { button, element, short } from "./dom";
import { csv, npz, safetensors, save } from "./files";
import { Judged, type Numbers } from "./judged";
import { readModel } from "./live";
import { Path } from "./model";
import { remaining } from "./nodes";
import { numberOf, rowsEditor } from "./rows";
import { averaging, bars, confusion, lossChart, named, runCharts, scoreChart, templates, traces, type Reading, type Section } from "./sections";

export interface View {
  node: HTMLElement;
  /** Goes to a strength; what is out of range is refused with words. */
  set: (l2: number) => void;
  l2: () => number;
  /** Other strengths are known than before. */
  renew: (data: Pick<PageData, "rows" | "best" | "one_se">) => void;
  /** Something to say of the strength at hand. */
  say: (text: string) => void;
}

type Kind = "safetensors" | "npz";

const STEPS = 1000;
let views = 0;

export function view(data: PageData, changed: (l2: number) => void, start?: number): View {
  const judged = new Judged(data);
  const path = data.path ? new Path(data.path) : null;
  const between = path ?? (data.scores && new Path(data.scores));
  const [low, high] = between?.range ?? judged.range;
  const range: [number, number] = [low, high];
  const usual = judged.best?.l2 ?? judged.rows[Math.floor(judged.rows.length / 2)]!.l2;
  let l2 = usual;

  const numbers = cards(data, judged, path);
  const rows = between && data.samples.length > 0 ? rowsEditor(data, path, usual) : null;
  const sections = [
    lossChart(data, judged, range),
    ...(path ? [data.image && data.model !== "kernel" ? templates(data, path) : bars(data, path)] : []),
    scoreChart(data, judged, range),
    data.image ? rows : null,
    path ? traces(data, path, judged, range) : null,
    confusion(data),
    averaging(data),
    ...runCharts(judged, range),
    data.image ? null : rows,
  ].filter((section) => section !== null);

  const id = `afterfit-${views++}`;
  const slider = element("input", { type: "range", min: 0, max: STEPS, step: 1, id, "aria-label": "regularization strength λ" });
  const typed = element("input", {
    type: "text", inputmode: "decimal", size: 9, autocomplete: "off", spellcheck: "false", "aria-label": "λ, typed", "aria-describedby": `${id}-refusal`,
  });
  const refusal = element("span", { id: `${id}-refusal`, class: "refusal", role: "status" });
  const place = (value: number) => (high > low ? (STEPS * Math.log(value / low)) / Math.log(high / low) : 0);

  const visible = new Set<(typeof sections)[number]>();
  let current: Reading | null = null;
  const reading = (): Reading => {
    if (current?.l2 !== l2) {
      const { row, place } = judged.nearest(l2);
      current = { l2, nearest: row, place, judged: row.l2 === l2, model: path ? path.at(l2) : null };
    }
    return current;
  };
  let pending = false;
  const refresh = () => {
    pending = false;
    const now = reading();
    numbers.update(now);
    visible.forEach((section) => {
      section.update(now);
    });
  };
  const later = () => {
    if (!pending) {
      pending = true;
      requestAnimationFrame(refresh);
    }
  };
  const set = (value: number) => {
    if (!Number.isFinite(value) || value < low || value > high) {
      refusal.textContent = `${Number.isNaN(value) ? "that is no number" : short(value)}: λ goes from ${short(low)} to ${short(high)}`;
      typed.setAttribute("aria-invalid", "true");
      return;
    }
    refusal.textContent = "";
    typed.removeAttribute("aria-invalid");
    // Without models at the nodes there is nothing between two judged strengths, unless someone evaluates it.
    l2 = between || data.live ? value : judged.nearest(value).row.l2;
    slider.value = String(place(l2));
    slider.setAttribute("aria-valuetext", `λ ${short(l2)}`);
    if (Number(typed.value) !== l2) typed.value = short(l2, 6);
    changed(l2);
    later();
  };
  slider.addEventListener("input", () => {
    const value = low * (high / low) ** (Number(slider.value) / STEPS);
    // A judged strength within a step of the slider is meant.
    const near = judged.rows.find((row) => Math.abs(place(row.l2) - Number(slider.value)) < 0.75);
    set(near ? near.l2 : Math.min(Math.max(value, low), high));
  });
  slider.addEventListener("keydown", (event) => {
    // Keys go from one judged strength to the next.
    const after = judged.rows.filter((row) => row.l2 > l2).map((row) => row.l2);
    const before = judged.rows.filter((row) => row.l2 < l2).map((row) => row.l2).reverse();
    const steps: Record<string, number | undefined> = {
      ArrowRight: after[0], ArrowUp: after[0], ArrowLeft: before[0], ArrowDown: before[0],
      PageUp: after[4] ?? high, PageDown: before[4] ?? low, Home: low, End: high,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const to = steps[event.key];
    if (to !== undefined) set(to);
  });
  typed.addEventListener("change", () => {
    set(numberOf(typed.value.trim()));
  });

  const chosen = element("span", { class: "chosen" });
  const offer = () => {
    const known: [string, Row | null][] = [["best", judged.best], ["1-SE", judged.oneSe]];
    chosen.replaceChildren(...known.flatMap(([name, row]) => (row ? [button(`${name} ${short(row.l2)}`, () => { set(row.l2); })] : [])));
  };
  offer();
  const control = element("div", { class: "control" }, element("label", { for: id }, "λ"), slider, typed, chosen, refusal);
  const everything = element("div", {});
  const tabulate = () => { everything.replaceChildren(table(data, judged)); };
  tabulate();
  const node = element(
    "div",
    { class: "afterfit" },
    element("h1", {}, data.title),
    control,
    numbers.node,
    ...laidOut(sections),
    takeaway(data, judged, path, () => l2),
    remarks(data),
    everything,
  );
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const section = sections.find((section) => section.node === entry.target)!;
      if (entry.isIntersecting) {
        visible.add(section);
        section.update(reading());
      } else {
        visible.delete(section);
      }
    }
  }, { rootMargin: "100px" });
  sections.forEach((section) => {
    watcher.observe(section.node);
  });
  // (All of it is on paper, and in pictures of the whole page.)
  window.addEventListener("beforeprint", () => {
    sections.forEach((section) => {
      section.update(reading());
    });
  });
  set(start !== undefined && start >= low && start <= high ? start : usual);
  if (start !== undefined && (start < low || start > high)) {
    refusal.textContent = `${short(start)}, which the address asks for: λ goes from ${short(low)} to ${short(high)}`;
  }
  refresh();
  sections.forEach((section) => {
    section.update(reading());
  });
  const renew = (known: Pick<PageData, "rows" | "best" | "one_se">) => {
    judged.renew(known);
    current = null;
    offer();
    tabulate();
    sections.forEach((section) => section.renew?.());
    later();
  };
  return { node, set, l2: () => l2, renew, say: (text) => { numbers.say(text); } };
}

interface Cards {
  node: HTMLElement;
  update: (reading: Reading) => void;
  say: (text: string) => void;
}

/** Two columns, each section in the one that is shorter so far, and what goes across both; where there is room for one alone,
everything in the order of the list. */
function laidOut(sections: Section[]): HTMLElement[] {
  const columns = [0, 1].map(() => ({ node: element("div", { class: "column" }), height: 0 }));
  const wide: HTMLElement[] = [];
  sections.forEach(({ title, node, size }, order) => {
    const made = element("section", {}, element("h2", {}, title), node);
    made.style.order = String(order);
    if (size === "wide") {
      wide.push(made);
      return;
    }
    const shorter = columns[0]!.height <= columns[1]!.height ? columns[0]! : columns[1]!;
    shorter.node.append(made);
    shorter.height += size === "tall" ? 1.8 : 1;
  });
  return [element("div", { class: "sections" }, ...columns.map(({ node }) => node)), ...wide];
}

const percent = (value: number | null) => (value === null ? "–" : `${(100 * value).toFixed(2)} %`);

/** The numbers at the strength at hand, and one sentence of them for those who hear the page. */
function cards(data: PageData, judged: Judged, path: Path | null): Cards {
  const list: { title: string; value: (l2: number) => number | null; show: (value: number | null) => string; exact: boolean }[] = [];
  const number = (title: string, of: Numbers, show: (value: number | null) => string = short, always = false) => {
    if (always || judged.has(of)) list.push({ title, value: (l2) => judged.at(l2, of), show, exact: false });
  };
  list.push({ title: "λ", value: (l2) => l2, show: short, exact: true });
  const { unit } = data;
  if (unit) list.push({ title: unit.name, value: (l2) => unit.scale * l2 ** unit.power, show: short, exact: true });
  number(`validation ${data.loss}`, "validation_loss");
  if (data.score || data.live) number(data.model === null || data.live ? (data.score ?? "score") : `validation ${data.score ?? "score"}`, "validation_score", short, data.live);
  number("validation accuracy", "validation_accuracy", percent);
  number("validation R²", "validation_r2");
  number(`training ${data.loss}`, "train_loss");
  number("degrees of freedom", "degrees_of_freedom");
  number("‖w‖", "norm");
  const { runs } = data;
  if (runs) list.push({ title: "unspent mass", value: (l2) => remaining(runs, l2), show: percent, exact: true });
  else number("unspent mass", "remaining", percent);
  number("reading off by ≤", "error", (value) => short(value, 2));
  const shown = list.map((card) => ({ ...card, place: element("b") }));
  const bound = element("b");
  const sentence = element("p", { class: "heard", role: "status" });
  const certainty = ({ judged, nearest }: Reading): string => {
    if (judged && nearest.resolved === false) return `unresolved: loss off by ≤ ${short(nearest.excess, 2)}`;
    if (judged && typeof nearest.excess === "number") return `loss off by ≤ ${short(nearest.excess, 2)}`;
    return path ? `${named(data).many} off by ≤ ${short(path.error, 2)}` : "";
  };
  const word = element("span", {}, data.standing);
  const standing = element("div", { class: "card standing", title: data.reason }, word, bound);
  const node = element(
    "div",
    { class: "cards" },
    ...shown.map(({ title, place }) => element("div", { class: "card" }, title, place)),
    data.standing ? standing : null,
    sentence,
  );
  let timer = 0;
  let said = "";
  return {
    node,
    update: (reading) => {
      const texts = shown.map(({ title, value, show, exact, place }) => {
        const number = value(reading.l2);
        // (A number between two judged strengths is interpolated.)
        place.textContent = (exact || reading.judged || number === null ? "" : "≈ ") + show(number);
        if (number !== null) place.dataset.value = String(number);
        return `${title} ${place.textContent}`;
      });
      word.textContent = reading.nearest.standing ?? data.standing;
      bound.textContent = said || certainty(reading);
      window.clearTimeout(timer);
      timer = window.setTimeout(() => { sentence.textContent = texts.join(", "); }, 600);
    },
    say: (text) => {
      said = text;
      bound.textContent = text;
    },
  };
}

function takeaway(data: PageData, judged: Judged, path: Path | null, at: () => number): HTMLElement {
  const command = () => data.command.replaceAll("{l2}", String(at()));
  const done = element("span", { role: "status", class: "done" });
  const copy = button("Copy the command that makes this model", () => {
    void navigator.clipboard.writeText(command()).then(
      () => { done.textContent = `copied: ${command()}`; },
      // (Pages from disk may not be let near the clipboard.)
      () => { done.textContent = command(); },
    );
  });
  const made = (kind: Kind, l2: number): Blob | Uint8Array<ArrayBuffer> => {
    const found = path!.at(l2);
    return kind === "npz" ? npz(path!, found) : safetensors(data.about!, path!, found, judged.nearest(l2).row.resolved !== false);
  };
  const model = (kind: Kind) => button(`Download this model (.${kind})`, () => {
    const l2 = at();
    const content = data.live ? readModel(l2, kind) : Promise.resolve(made(kind, l2));
    content.then(
      (content) => {
        save(`model-l2-${short(l2, 6)}.${kind}`, content, "application/octet-stream");
      },
      (error: unknown) => { done.textContent = error instanceof Error ? error.message : String(error); },
    );
  });
  return element(
    "section",
    { class: "takeaway" },
    element("h2", {}, "Take it away"),
    ...(data.live || (path && data.about) ? [model("safetensors"), model("npz")] : []),
    button("Download the table (.csv)", () => { save("path.csv", csv(judged.rows), "text/csv"); }),
    data.command ? copy : null,
    done,
  );
}

function remarks(data: PageData): HTMLElement {
  const { path } = data;
  const own = path
    ? [`Between the strengths of the fit, models are combinations of those at ${path.count} nodes, kept as ${path.type}: ${named(data).many} within ${short(path.error, 2)} of the exact ones' length, and ${short(path.rounding, 2)} for rounding. Numbers marked ≈ are interpolated.`]
    : [];
  const kernel = data.model === "kernel"
    ? ["A kernel model is its training rows, and these stay out of the page. So the rows that it shows cannot be edited, and the model cannot be downloaded: the command makes it. Where rows are much alike, errors of the coefficients are larger in predictions."]
    : [];
  const reason = data.reason ? [`${data.standing}: ${data.reason}`] : [];
  return element(
    "section",
    {},
    element("h2", {}, "What is exact and what is not"),
    element("ul", {}, ...[...reason, ...own, ...kernel, ...data.notes].map((note) => element("li", {}, note))),
  );
}

function table(data: PageData, judged: Judged): HTMLElement {
  const { rows, best, oneSe } = judged;
  const all: [string, Numbers][] = [
    ["λ", "l2"], ["training loss", "train_loss"], ["validation loss", "validation_loss"], [data.score ?? "score", "validation_score"],
    ["accuracy", "validation_accuracy"], ["R²", "validation_r2"], ["‖w‖", "norm"], ["degrees of freedom", "degrees_of_freedom"],
    ["excess loss ≤", "excess"], ["distance ≤", "distance"], ["unspent mass", "remaining"], ["off by ≤", "error"],
  ];
  const shown = all.filter(([, of]) => judged.has(of));
  const line = (row: Row) => {
    const remark = [row === best ? "best" : "", row === oneSe ? "1-SE" : "", row.resolved === false ? "unresolved" : ""].filter(Boolean);
    const cells = shown.map(([, of]) => element("td", {}, short(row[of], of === "distance" || of === "excess" ? 2 : 5)));
    return element("tr", { class: row === best ? "best" : row === oneSe ? "onese" : null }, ...cells, element("td", {}, remark.join(", ")));
  };
  const head = element("tr", {}, ...shown.map(([name]) => element("th", { scope: "col" }, name)), element("td"));
  const grid = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows.map(line)));
  return element(
    "section",
    {},
    element("h2", {}, "Every strength"),
    element("details", {}, element("summary", {}, `The numbers of all ${rows.length} strengths`),
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "every strength" }, grid)),
  );
}
