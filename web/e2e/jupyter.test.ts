// The widget in a real JupyterLab: JUPYTER names its command, in an environment that has afterfit and anywidget.

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, it, vi } from "vitest";

import { card, folder, launch, patience, serious, slider } from "./browser";

const jupyter = process.env.JUPYTER;
if (!jupyter) throw new Error("JUPYTER names the jupyter to test with");

const cell = (source: string) => ({ cell_type: "code", execution_count: null, id: `c${source.length}`, metadata: {}, outputs: [], source });
const notebook = {
  cells: [
    cell([
      "from sklearn.datasets import load_digits",
      "from afterfit.sklearn import LogisticRegressionCV",
      "from afterfit.widget import Dial",
      "X, y = load_digits(n_class=4, return_X_y=True)",
      "X = X / 16",
      "model = LogisticRegressionCV(l2=(1e-3, 1.0), cv=3).fit(X[:300], y[:300])",
      "seen = []",
      "dial = Dial(model, X=X, y=y, image=(8, 8), title='Digits in a notebook')",
      "dial.observe(lambda change: seen.append(change.new), 'l2')",
      "dial",
    ].join("\n")),
    cell("print('strength', dial.l2, len(seen) > 0, abs(dial.value * dial.l2 * 300 - 1) < 1e-9)"),
    cell("dial.l2 = 0.02"),
  ],
  metadata: { kernelspec: { display_name: "Python 3", language: "python", name: "python3" } },
  nbformat: 4,
  nbformat_minor: 5,
};

let browser: Browser;
let server: ChildProcess;
const port = 18_000 + (process.pid % 2000);

/** Runs a cell and waits for its end. A key pressed before the notebook listens is lost, so it is pressed until it is taken. */
async function execute(page: Page, at: number): Promise<void> {
  const one = page.locator(".jp-CodeCell").nth(at);
  const prompt = async (): Promise<string> => (await one.locator(".jp-InputPrompt").textContent()) ?? "";
  await vi.waitFor(async () => {
    if ((await prompt()).includes("[ ]")) {
      await one.locator(".cm-content").click();
      await page.keyboard.press("Shift+Enter");
    }
    await vi.waitFor(async () => { expect(await prompt()).not.toContain("[ ]"); }, { timeout: 10_000, interval: 200 });
  }, { ...patience, interval: 100 });
  await vi.waitFor(async () => { expect(await prompt()).toMatch(/\[\d+\]/); }, { ...patience, interval: 200 });
}

beforeAll(async () => {
  // Its first import compiles hundreds of modules; the kernel, which is asked for signs of life, need not wait for that.
  execFileSync(join(dirname(jupyter), "python"), ["-c", "import afterfit.sklearn, afterfit.widget, ipykernel, sklearn.datasets"], { stdio: "inherit" });
  writeFileSync(join(folder, "dial.ipynb"), JSON.stringify(notebook));
  // (Nobody who looks at a picture of a notebook is asked about news.)
  const notifications = join(folder, "settings/@jupyterlab/apputils-extension");
  mkdirSync(notifications, { recursive: true });
  writeFileSync(join(notifications, "notification.jupyterlab-settings"), JSON.stringify({ fetchNews: "false", checkForUpdates: false }));
  server = spawn(jupyter, ["lab", "--no-browser", "--allow-root", `--port=${port}`, "--ip=127.0.0.1", "--IdentityProvider.token=page", "--ServerApp.port_retries=0", "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"], {
    cwd: folder, stdio: "ignore", env: { ...process.env, JUPYTER_CONFIG_DIR: join(folder, "jupyter"), JUPYTERLAB_SETTINGS_DIR: join(folder, "settings"), JUPYTERLAB_WORKSPACES_DIR: join(folder, "workspaces") },
  });
  browser = await launch();
  await vi.waitFor(async () => {
    expect((await fetch(`http://127.0.0.1:${port}/api/status?token=page`)).status).toBe(200);
  }, { ...patience, interval: 500 });
}, 600_000);

afterAll(async () => {
  await browser.close();
  server.kill("SIGKILL");
});

it("moves with Python, and Python with it", async () => {
  const page = await (await browser.newContext({ viewport: { width: 1400, height: 1150 } })).newPage();
  const errors: string[] = [];
  page.on("pageerror", (error) => { errors.push(error.message); });
  await page.goto(`http://127.0.0.1:${port}/lab/tree/dial.ipynb?token=page&reset`);
  await page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').waitFor({ ...patience, state: "attached" });
  await execute(page, 0);
  await page.waitForSelector(".afterfit .card b[data-value]", patience);
  expect(await page.locator(".afterfit h1").textContent()).toBe("Digits in a notebook");
  expect(await page.locator(".afterfit .pictures canvas").count()).toBe(4);
  // The widget's own style reaches no further.
  expect(await page.evaluate(() => getComputedStyle(document.body).margin)).toBe("0px");
  await vi.waitFor(async () => {
    await slider(page).focus();
    await page.keyboard.press("End");
    expect((await card(page, "λ")).value).toBe(1);
  }, { ...patience, interval: 200 });
  // (What the widget says may reach a busy kernel behind the cell that asks: then it is asked again.)
  await execute(page, 1);
  const said = () => document.body.textContent.includes("strength 1.0 True True");
  await vi.waitFor(async () => {
    if (await page.evaluate(said)) return;
    await page.locator(".jp-CodeCell").nth(1).locator(".cm-content").click();
    await page.keyboard.press("Shift+Enter");
    await page.waitForFunction(said, null, { timeout: 10_000 });
  }, { ...patience, interval: 200 });
  await execute(page, 2);
  await page.waitForFunction(() => document.querySelector(".afterfit .card b")?.getAttribute("data-value") === "0.02", null, patience);
  expect(await card(page, "degrees of freedom").then(({ value }) => value)).toBeGreaterThan(1);
  expect(await serious(page, ".afterfit")).toEqual([]);
  await page.locator(".afterfit h1").evaluate((title) => { title.scrollIntoView(); });
  await page.waitForTimeout(500);
  const keep = process.env.PICTURES;
  if (keep) await page.screenshot({ path: join(keep, "jupyter.png") });
  expect(errors.filter((error) => error.includes("afterfit"))).toEqual([]);
}, 900_000);
