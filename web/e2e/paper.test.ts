// The index of the paper's figures in a real Chromium: PAPER names the folder that has it.

import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, it } from "vitest";

import { launch, serious } from "./browser";

const given = process.env.PAPER;
if (!given) throw new Error("PAPER names the folder of the paper's figures");
const index = pathToFileURL(join(resolve(given), "index.html")).href;
let browser: Browser;

beforeAll(async () => {
  browser = await launch();
});

afterAll(async () => {
  await browser.close();
});

it.each([["light", 360], ["dark", 360], ["light", 1280], ["dark", 2560]] as const)("keeps nobody out: %s, %i pixels", async (colorScheme, width) => {
  const page = await (await browser.newContext({ colorScheme, viewport: { width, height: 900 } })).newPage();
  const complaints: string[] = [];
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) complaints.push(message.text()); });
  page.on("requestfailed", (request) => { complaints.push(request.url()); });
  await page.goto(index);
  const pictures = page.locator("section img");
  expect(await pictures.count()).toBeGreaterThan(0);
  expect(await pictures.evaluateAll((all) => all.every((picture) => (picture as HTMLImageElement).naturalWidth > 0))).toBe(true);
  expect(await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth)).toBe(true);
  expect(await serious(page)).toEqual([]);
  expect(complaints).toEqual([]);
});
