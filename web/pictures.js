// The pictures of docs/: the demo's page as it is, narrow, dark, and moving. Usage: node pictures.js REPORT.html FRAMES-FOLDER
// (`make pictures`; tests/pictures.py joins the frames.)
import { mkdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";

const [report, frames] = process.argv.slice(2).map((path) => resolve(path));
const docs = resolve("../docs");
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });

async function open(colorScheme, width, height, deviceScaleFactor = 1) {
  const context = await browser.newContext({ colorScheme, viewport: { width, height }, deviceScaleFactor });
  const page = await context.newPage();
  await page.goto(`file://${report}`);
  await page.waitForSelector(".afterfit .card b[data-value]");
  await page.waitForTimeout(300);
  return page;
}

for (const [scheme, width] of [["light", 360], ["dark", 360], ["dark", 1280]]) {
  const page = await open(scheme, width, 800);
  await page.screenshot({ path: join(docs, `page-${scheme}-${width}.png`), fullPage: true });
}

for (const scheme of ["light", "dark"]) {
  const page = await open(scheme, 1120, 780);
  mkdirSync(join(frames, scheme), { recursive: true });
  // There and back again, slowly where much happens.
  const there = Array.from({ length: 24 }, (_, i) => i / 23);
  for (const [at, share] of [...there, ...there.slice(1, -1).reverse()].entries()) {
    await page.evaluate((share) => {
      const slider = document.querySelector("input[type=range]");
      slider.value = String(Math.round(1000 * share));
      slider.dispatchEvent(new Event("input"));
      return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    }, share);
    await page.screenshot({ path: join(frames, scheme, `${String(at).padStart(3, "0")}.png`) });
  }
}
await browser.close();
