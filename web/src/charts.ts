// Charts over ln λ, each with a line at the strength at hand.

import { plot, type Markish, type Plot, type ScaleOptions } from "@observablehq/plot";

import { button, element } from "./dom";
import { png, save, svgText } from "./files";

/** Told apart by people of every color vision (P. Tol). */
export const COLORS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb5566", "#997700"];
/** Of the strength at hand. */
export const AT_HAND = "#d55e00";

const NAME = "afterfit-plot";
/** What the library would put into every chart; it stands in the page's own sheet, where the page's policy lets it. */
const STYLE = `.${NAME} text{white-space:pre;fill:currentColor}.${NAME}{--plot-background:#fff}`;

export interface Drawing {
  marks: Markish[];
  x?: ScaleOptions;
  y?: ScaleOptions;
  height?: number;
}

/** The width of a text in a chart. (A page that is asked lays itself out, at every frame.) */
function widthOf(text: string): number {
  pen ??= element("canvas").getContext("2d")!;
  pen.font = "12px system-ui, sans-serif";
  return pen.measureText(text).width;
}
let pen: CanvasRenderingContext2D | undefined;

/** Between a tick's label and the axis. */
const TICK = 11;

export class Chart {
  readonly node: HTMLElement;
  private readonly frame = element("div", { class: "chart" });
  private svg: (SVGSVGElement & Plot) | null = null;
  private rule: SVGLineElement | null = null;
  private width = 0;
  /** Room for the labels of the axis. (It only grows: what moves with λ does not jump.) */
  private left = 40;

  /** `over` λ: a chart with a line that moves; otherwise drawn anew for every λ. */
  constructor(
    private readonly name: string,
    caption: string,
    private readonly draw: (l2: number) => Drawing,
    private readonly over: boolean,
    private l2: number,
    legend: [string, string][] = [],
  ) {
    const keys = legend.map(([color, text]) => {
      const key = element("i");
      key.style.background = color;
      return element("li", {}, key, text);
    });
    const tools = element(
      "span",
      { class: "tools" },
      button("SVG", () => {
        this.saveSvg();
      }, `Save the chart “${name}” as SVG`),
      button("PNG", () => void this.savePng(), `Save the chart “${name}” as PNG`),
    );
    this.node = element(
      "figure",
      {},
      this.frame,
      keys.length > 0 ? element("ul", { class: "legend" }, ...keys) : null,
      element("figcaption", {}, caption, " ", tools),
    );
    new ResizeObserver(() => {
      const width = Math.floor(this.frame.clientWidth);
      if (width > 0 && width !== this.width) {
        this.width = width;
        this.redraw();
      }
    }).observe(this.frame);
  }

  update(l2: number): void {
    this.l2 = l2;
    if (this.over) this.move();
    else this.redraw();
  }

  redraw(): void {
    if (this.width === 0) return;
    const drawing = this.draw(this.l2);
    let svg = this.plotted(drawing);
    const labels = [...svg.querySelectorAll('[aria-label="y-axis tick label"] text')];
    const left = Math.ceil(Math.min(0.6 * this.width, TICK + Math.max(0, ...labels.map((label) => widthOf(label.textContent)))));
    if (left > this.left) {
      this.left = left;
      svg = this.plotted(drawing);
    }
    svg.querySelector("style")?.remove();
    // (A picture has one name. Its parts have none.)
    svg.querySelectorAll("[aria-label]").forEach((part) => { part.removeAttribute("aria-label"); });
    svg.setAttribute("role", "img");
    this.svg = svg;
    this.rule = null;
    if (this.over) {
      this.rule = document.createElementNS("http://www.w3.org/2000/svg", "line");
      this.rule.setAttribute("class", "at");
      this.rule.setAttribute("stroke", AT_HAND);
      this.rule.setAttribute("stroke-width", "2");
      svg.append(this.rule);
      this.move();
    }
    this.frame.replaceChildren(svg);
  }

  private plotted({ height, ...drawing }: Drawing): SVGSVGElement & Plot {
    const found = plot({
      ...drawing,
      marginBottom: 40,
      marginLeft: this.left,
      className: NAME,
      width: this.width,
      height: height ?? Math.round(Math.min(320, 150 + 0.2 * this.width)),
      ariaLabel: this.name,
    });
    return (found instanceof SVGSVGElement ? found : found.querySelector("svg")!) as SVGSVGElement & Plot;
  }

  private move(): void {
    const [x, y] = [this.svg?.scale("x"), this.svg?.scale("y")];
    if (!x || !y || !this.rule) return;
    const at = String(x.apply(this.l2));
    const range = (y.range as number[]).map(String);
    this.rule.setAttribute("x1", at);
    this.rule.setAttribute("x2", at);
    this.rule.setAttribute("y1", range[0]!);
    this.rule.setAttribute("y2", range[1]!);
  }

  private get file(): string {
    return this.name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/-$/, "");
  }

  private saveSvg(): void {
    if (this.svg) save(`${this.file}.svg`, svgText(this.svg, STYLE), "image/svg+xml");
  }

  private async savePng(): Promise<void> {
    if (this.svg) save(`${this.file}.png`, await png(this.svg, STYLE), "image/png");
  }
}
