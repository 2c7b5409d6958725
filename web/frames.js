// What a frame of the page costs while the slider moves, beside the time a screen of 60 frames a second leaves for it: pages of
// 10⁵ weights at 24 nodes or more. Usage: node frames.js AFTERFIT (prints Markdown rows; `make bench`)
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";

const afterfit = resolve(process.argv[2]);
const folder = mkdtempSync(join(tmpdir(), "afterfit-frames-"));
const [rows, classes, frames, refresh] = [300, 10, 240, 1000 / 60];

// The same numbers every time (a linear congruential generator).
let state = 1;
const random = () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648;

/** IDX, as MNIST comes: the type is unsigned bytes. */
function idx(name, shape, values) {
  const header = Buffer.alloc(4 + 4 * shape.length);
  header.writeUInt32BE(0x0800 + shape.length, 0);
  shape.forEach((length, at) => header.writeUInt32BE(length, 4 + 4 * at));
  writeFileSync(join(folder, name), Buffer.concat([header, Buffer.from(values)]));
}

const labels = Array.from({ length: rows }, (_, row) => row % classes);
const pixels = labels.flatMap((label) => Array.from({ length: 100 * 100 }, (_, at) => 25 * random() + (at % classes === label ? 4 * (at % 37) : 0)));
idx("images-idx3-ubyte", [rows, 100, 100], pixels);
idx("labels-idx1-ubyte", [rows], labels);
const names = Array.from({ length: 100 * 100 }, (_, at) => `x${at}`);
const lines = labels.map((label, row) => [...pixels.slice(row * 10_000, (row + 1) * 10_000).map((value) => value.toFixed(0)), `class ${label}`].join(","));
writeFileSync(join(folder, "table.csv"), [[...names, "class"].join(","), ...lines].join("\n"));

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
for (const [name, ...input] of [["images", "images-idx3-ubyte", "--target", "labels-idx1-ubyte"], ["table", "table.csv", "--target", "class"]]) {
  const report = `${name}.html`;
  execFileSync(afterfit, ["fit", ...input, "--l2", "1e-4..1e2:40", "--report", report, "-q"], { cwd: folder, stdio: ["ignore", "ignore", "inherit"] });
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  await page.goto(`file://${join(folder, report)}`);
  await page.waitForSelector(".afterfit .card b[data-value]");
  const nodes = JSON.parse(readFileSync(join(folder, report), "utf8").split('id="afterfit-data">')[1].split("</script>")[0]).path.count;
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  const spent = async () => Object.fromEntries((await session.send("Performance.getMetrics")).metrics.map(({ name, value }) => [name, value]));
  await page.waitForTimeout(1000);
  const before = await spent();
  const shown = await page.evaluate(async (frames) => {
    const slider = document.querySelector("input[type=range]");
    const start = performance.now();
    for (let frame = 0; frame < frames; frame++) {
      slider.value = String(Math.round(500 * (1 + Math.sin(frame / 17))));
      slider.dispatchEvent(new Event("input"));
      await new Promise((done) => requestAnimationFrame(done));
    }
    return (performance.now() - start) / frames;
  }, frames);
  const after = await spent();
  const each = (metric) => (1e3 * (after[metric] - before[metric])) / frames;
  const [script, layout, all] = [each("ScriptDuration"), each("RecalcStyleDuration") + each("LayoutDuration"), each("TaskDuration")];
  // (Painting is the software renderer's here, and the rest the browser's own; what counts is whether frames come in time.)
  console.log(`| a frame of the page while λ moves: ${name}, 10⁵ weights at ${nodes} nodes | ${script.toFixed(1)} ms of script, ${layout.toFixed(1)} ms of style and layout, ${(all - script - layout).toFixed(1)} ms of painting and the rest; a frame every ${shown.toFixed(1)} ms | 60 frames a second: ${refresh.toFixed(1)} ms | script: ${(100 * script / refresh).toFixed(0)} % of a frame, all: ${(100 * all / refresh).toFixed(0)} % |`);
  await page.close();
}
await browser.close();
rmSync(folder, { recursive: true });
