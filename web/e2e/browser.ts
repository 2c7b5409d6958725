// A real Chromium, the command, and what every page is asked.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

import { chromium, type Browser, type BrowserContextOptions, type Page } from "playwright-core";
import { expect } from "vitest";

const given = process.env.AFTERFIT;
if (!given) throw new Error("AFTERFIT names the command to test");
export const AFTERFIT = resolve(given);
export const folder = mkdtempSync(join(tmpdir(), "afterfit-page-"));

/** Of a fresh machine on two busy cores: what counts is whether it comes, not when. */
export const patience = { timeout: 300_000 };

/** What the command prints. */
export const run = (...args: string[]): string => execFileSync(AFTERFIT, args, { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"], maxBuffer: 1 << 26 });

export const launch = (): Promise<Browser> =>
  chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"] });

export interface Watched {
  page: Page;
  /** Everything the page complained about, and every address it asked for besides its own. */
  complaints: string[];
  requests: string[];
}

export async function open(browser: Browser, url: string, options: BrowserContextOptions = {}): Promise<Watched> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true, ...options });
  const page = await context.newPage();
  const watched: Watched = { page, complaints: [], requests: [] };
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) watched.complaints.push(message.text());
  });
  page.on("pageerror", (error) => {
    watched.complaints.push(error.message);
  });
  page.on("request", (request) => {
    if (!["data:", "blob:"].some((scheme) => request.url().startsWith(scheme)) && request.url().split("#")[0] !== url.split("#")[0]) watched.requests.push(request.url());
  });
  await page.goto(url);
  await page.waitForSelector(".afterfit .card b[data-value]");
  return watched;
}

/** The number of a card, as exact as the page has it, and as it is shown. */
export async function card(page: Page, title: string): Promise<{ value: number; text: string }> {
  const place = page.locator(".card").filter({ has: page.locator(`xpath=self::*[starts-with(normalize-space(text()[1]), "${title}")]`) }).first().locator("b");
  return { value: Number(await place.getAttribute("data-value")), text: (await place.textContent()) ?? "" };
}

export const slider = (page: Page) => page.locator("input[type=range]");
export const typed = (page: Page) => page.getByLabel("λ, typed");

/** Types a strength; the next frame shows it. */
export async function go(page: Page, l2: number | string): Promise<void> {
  await typed(page).fill(String(l2));
  await typed(page).press("Enter");
  await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => { requestAnimationFrame(done); }); }));
}

export async function download(page: Page, name: string | RegExp): Promise<string> {
  const waiting = page.waitForEvent("download");
  await page.getByRole("button", { name }).first().click();
  const got = await waiting;
  const to = join(folder, got.suggestedFilename());
  await got.saveAs(to);
  return to;
}

const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

/** What axe-core finds that keeps people out, in a part of the page (in a notebook, most of it is somebody else's; one name for each
shadow root on the way to it, and its own). */
export async function serious(page: Page, ...within: string[]): Promise<string[]> {
  return page.evaluate(async ([source, ...within]) => {
    // (The page's own policy lets no script in; the debugger is not bound by it.)
    // eslint-disable-next-line @typescript-eslint/no-implied-eval, @typescript-eslint/no-unsafe-call
    new Function(source!)();
    interface Found { violations: { id: string; impact: string; nodes: { html: string }[] }[] }
    const found = await (window as unknown as { axe: { run: (within: object) => Promise<Found> } }).axe.run({ fromShadowDom: within });
    return found.violations.filter(({ impact }) => ["serious", "critical"].includes(impact)).map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" | ")}`);
  }, [axe, ...(within.length > 0 ? within : ["html"])]);
}

/** Nothing was fetched, and nothing went wrong. */
export function quiet({ complaints, requests }: Watched): void {
  expect(complaints).toEqual([]);
  expect(requests).toEqual([]);
}
