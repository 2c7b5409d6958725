// The widget in a real marimo: MARIMO names its command, in an environment that has afterfit and anywidget.

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, it, vi } from "vitest";

import { card, folder, go, launch, patience, serious, slider } from "./browser";

const marimo = process.env.MARIMO;
if (!marimo) throw new Error("MARIMO names the marimo to test with");

const notebook = `import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo
    from sklearn.datasets import load_digits
    from afterfit.sklearn import LogisticRegressionCV
    from afterfit.widget import Dial

    X, y = load_digits(n_class=4, return_X_y=True)
    X = X / 16
    model = LogisticRegressionCV(l2=(1e-3, 1.0), cv=3).fit(X[:300], y[:300])
    turn = mo.ui.button(label="turn it", value=0, on_click=lambda times: times + 1)
    dial = mo.ui.anywidget(Dial(model, X=X, y=y, image=(8, 8), title="Digits in marimo"))
    return dial, mo, turn


@app.cell
def _(dial):
    dial
    return


@app.cell
def _(dial, mo, turn):
    mo.hstack([mo.md(f"strength {dial.l2}, C {dial.widget.value:.4g}"), turn], justify="start")
    return


@app.cell
def _(dial, turn):
    if turn.value:
        dial.widget.l2 = 0.02
    return
`;

let browser: Browser;
let server: ChildProcess;
const port = 20_000 + (process.pid % 2000);
const own = `http://127.0.0.1:${port}`;

beforeAll(async () => {
  // (Its first import compiles hundreds of modules.)
  execFileSync(join(dirname(marimo), "python"), ["-c", "import afterfit.sklearn, afterfit.widget, marimo, sklearn.datasets"], { stdio: "inherit" });
  writeFileSync(join(folder, "dial.py"), notebook);
  server = spawn(marimo, ["edit", "dial.py", "--headless", "--no-token", "--skip-update-check", "--host=127.0.0.1", `--port=${port}`], {
    // (Settings of whoever runs this are left alone.)
    cwd: folder, stdio: "ignore", env: { ...process.env, HOME: folder, XDG_CONFIG_HOME: folder, XDG_STATE_HOME: folder, XDG_CACHE_HOME: folder },
  });
  browser = await launch();
  await vi.waitFor(async () => {
    expect((await fetch(`${own}/health`)).status).toBe(200);
  }, { ...patience, interval: 500 });
}, 600_000);

afterAll(async () => {
  await browser.close();
  server.kill("SIGKILL");
});

it("moves with the other cells, and they with it", async () => {
  const page = await (await browser.newContext({ viewport: { width: 1400, height: 1150 } })).newPage();
  const errors: string[] = [];
  const elsewhere: string[] = [];
  page.on("pageerror", (error) => { errors.push(error.message); });
  page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });
  page.on("request", (request) => {
    if (!["data:", "blob:", own, own.replace("http", "ws")].some((start) => request.url().startsWith(start))) elsewhere.push(request.url());
  });
  await page.goto(own);
  // (The last of these buttons runs every cell that has not been run. It is there before anything listens, so it is pressed until it is taken.)
  await vi.waitFor(async () => {
    await page.locator('[data-testid="run-button"]:visible').last().click({ timeout: 1000 }).catch(() => undefined);
    await page.waitForSelector(".afterfit .card b[data-value]", { timeout: 10_000 });
  }, { ...patience, interval: 200 });
  expect(await page.locator(".afterfit h1").textContent()).toBe("Digits in marimo");
  expect(await page.locator(".afterfit .pictures canvas").count()).toBe(4);
  // Another cell follows the slider,
  const said = (l2: string) => page.getByText(`strength ${l2}, C ${(1 / (300 * Number(l2))).toPrecision(4)}`).waitFor(patience);
  const before = (await card(page, "λ")).value;
  await said(String(before));
  await slider(page).focus();
  await page.keyboard.press("End");
  await said("1.0");
  expect((await card(page, "λ")).value).toBe(1);
  await go(page, 0.005);
  await said("0.005");
  await page.locator(".afterfit h1").evaluate((title) => {
    title.style.scrollMarginTop = "5rem";
    title.scrollIntoView();
  });
  await page.locator(".afterfit h1").click();
  await page.waitForTimeout(500);
  const keep = process.env.PICTURES;
  if (keep) await page.screenshot({ path: join(keep, "marimo.png"), clip: { x: 0, y: 0, width: 1400, height: 900 } });
  // and the slider follows another cell.
  await page.getByRole("button", { name: "turn it" }).click();
  await vi.waitFor(async () => { expect((await card(page, "λ")).value).toBe(0.02); }, { ...patience, interval: 200 });
  expect(await card(page, "degrees of freedom").then(({ value }) => value)).toBeGreaterThan(1);
  expect(await serious(page, "marimo-anywidget", ".afterfit")).toEqual([]);
  expect(errors).toEqual([]);
  expect(elsewhere).toEqual([]);
}, 900_000);
