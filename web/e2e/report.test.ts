// The pages of reports in a real Chromium.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import type { Browser } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

import { short } from "../src/dom";
import { card, download, folder, go, launch, open, quiet, run, serious, slider, typed } from "./browser";

interface Fitted {
  path: { l2: number; validation_loss: number; train_loss: number; validation_r2?: number; validation_accuracy?: number; norm: number; degrees_of_freedom?: number }[];
  best_l2: number;
}

const HOSTILE = `</script><img src=x onerror="document.title='hacked'">`;
const python = process.env.PYTHON ?? "python3";
let browser: Browser;
let houses: Fitted;
const url = (name: string) => `file://${join(folder, name)}`;

/** Rows of numbers that are the same at every call. */
function table(): string {
  let seed = 7;
  const next = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const lines = [`rooms,area,"${HOSTILE.replaceAll('"', '""')}",town,new,built,price`];
  const towns = ["Ulm", "Bad Tölz, upper", "<b>Köln</b>"];
  for (let row = 0; row < 90; row++) {
    const [rooms, area, odd, town, isNew, built] = [1 + Math.floor(6 * next()), 30 + 120 * next(), next() - 0.5, Math.floor(3 * next()), next() > 0.5, 1 + Math.floor(27 * next())];
    const price = 20 * rooms + 1.5 * area + 9 * odd + 12 * town + (isNew ? 15 : 0) + 8 * next();
    lines.push([rooms, area.toFixed(2), odd.toFixed(4), `"${towns[town]!}"`, isNew, `2020-05-${String(built).padStart(2, "0")}`, price.toFixed(2)].join(","));
  }
  return lines.join("\n") + "\n";
}

/** A page of averaged checkpoints, scored by a command. */
function averaged(): void {
  mkdirSync(join(folder, "run"));
  for (let step = 0; step <= 12; step++) {
    const numbers = Float32Array.from([Math.exp(-0.3 * step), 1 - Math.exp(-0.1 * step), Math.sin(step)]);
    const header = JSON.stringify({ w: { dtype: "F32", shape: [3], data_offsets: [0, 12] } }).padEnd(64);
    const length = Buffer.alloc(8);
    length.writeUInt32LE(header.length);
    writeFileSync(join(folder, `run/step-${step}.safetensors`), Buffer.concat([length, Buffer.from(header), Buffer.from(numbers.buffer)]));
  }
  writeFileSync(join(folder, "score.py"), "import struct, sys\nprint(-sum(x * x for x in struct.unpack('<3f', open(sys.argv[1], 'rb').read()[-12:])))\n");
  run("average", "run", "--rate", "0.1", "--l2", "1e-2..10:9", "--eval", `${python} score.py {}`, "-o", "averages", "--report", "average.html");
  run("average", "run", "--rate", "0.1", "--dial", "1e-2..10", "--nodes", "8", "-o", "network.dial");
  run("dial", "info", "network.dial", "--report", "network.html");
}

beforeAll(async () => {
  browser = await launch();
  run("demo");
  averaged();
  writeFileSync(join(folder, "houses.csv"), table());
  houses = JSON.parse(run("fit", "houses.csv", "--target", "price", "--l2", "1e-4..1e2:31", "--missing", "mean", "-o", "houses.safetensors", "--report", "houses.html", "--json")) as Fitted;
  run("fit", "houses.csv", "--target", "price", "--model", "kernel", "--kernel", "rbf", "--gamma", "1e-3", "--l2", "1e-3..1e1:13", "-o", "kernel.safetensors", "--report", "kernel.html");
}, 300_000);

afterAll(async () => {
  await browser.close();
});

const predictions = (model: string, csv: string, ...more: string[]): string[] => {
  writeFileSync(join(folder, "asked.csv"), csv);
  return run("predict", model, "asked.csv", "-q", ...more).trim().split("\n").slice(1);
};

describe("the demo's page", () => {
  it("is one file below 3 MB that starts at the best λ", async () => {
    const file = join(folder, "afterfit-demo/report.html");
    expect(statSync(file).size).toBeLessThan(3e6);
    const watched = await open(browser, url("afterfit-demo/report.html"));
    const { page } = watched;
    expect(await page.title()).toBe("Handwritten digits, softmax");
    expect(await page.locator(".pictures canvas").count()).toBe(10);
    expect(await page.locator("svg[role=img]").count()).toBeGreaterThanOrEqual(3);
    const [loss, accuracy] = [await card(page, "validation log-loss"), await card(page, "validation accuracy")];
    expect(loss.text).not.toContain("≈");
    expect(accuracy.value).toBeGreaterThan(0.9);
    quiet(watched);
  });

  it("changes its templates, probabilities and counts when the slider is dragged", async () => {
    const watched = await open(browser, url("afterfit-demo/report.html"));
    const { page } = watched;
    const state = () => page.evaluate(() => ({
      pictures: [...document.querySelectorAll<HTMLCanvasElement>(".pictures canvas")].map((canvas) => canvas.toDataURL()),
      shares: [...document.querySelectorAll(".share")].map((share) => share.textContent).join(),
      line: document.querySelector("line.at")!.getAttribute("x1"),
      hash: location.hash,
    }));
    const before = await state();
    const box = (await slider(page).boundingBox())!;
    await page.mouse.move(box.x + box.width * 0.5, box.y + box.height / 2);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.95, box.y + box.height / 2, { steps: 5 });
    await page.mouse.up();
    await page.waitForFunction(() => Number(location.hash.replace("#l2=", "")) > 0.1);
    await page.waitForTimeout(100);
    const after = await state();
    after.pictures.forEach((picture, at) => { expect(picture).not.toBe(before.pictures[at]); });
    expect(after.shares).not.toBe(before.shares);
    expect(after.line).not.toBe(before.line);
    expect(Number(after.hash.replace("#l2=", ""))).toBeGreaterThan(0.1);
    // The address keeps it.
    await page.reload();
    await page.waitForSelector(".card b[data-value]");
    expect((await card(page, "λ")).value).toBe(Number(after.hash.replace("#l2=", "")));
    quiet(watched);
  });

  it("follows a finger", async () => {
    const watched = await open(browser, url("afterfit-demo/report.html"), { hasTouch: true, viewport: { width: 360, height: 800 } });
    const { page } = watched;
    const box = (await slider(page).boundingBox())!;
    const [y, at] = [box.y + box.height / 2, (share: number) => box.x + share * box.width];
    await page.touchscreen.tap(at(0.8), y);
    await page.waitForFunction(() => Number(document.querySelector(".card b")!.getAttribute("data-value")) > 1e-2);
    const finger = await page.context().newCDPSession(page);
    const touch = (type: "touchStart" | "touchMove" | "touchEnd", share?: number) =>
      finger.send("Input.dispatchTouchEvent", { type, touchPoints: share === undefined ? [] : [{ x: at(share), y }] });
    await touch("touchStart", 0.8);
    for (const share of [0.7, 0.5, 0.3, 0.1]) await touch("touchMove", share);
    await touch("touchEnd");
    await page.waitForFunction(() => Number(document.querySelector(".card b")!.getAttribute("data-value")) < 1e-4);
    quiet(watched);
  });

  it("lets rows be painted on", async () => {
    const watched = await open(browser, url("afterfit-demo/report.html"));
    const { page } = watched;
    const found = page.locator(".rows .found").first();
    await found.scrollIntoViewIfNeeded();
    const shares = () => found.locator(".share").evaluateAll((all) => all.map((share) => share.getAttribute("data-value")).join());
    const before = await shares();
    const picture = page.locator(".row-picture").first();
    const box = (await picture.boundingBox())!;
    await page.mouse.move(box.x + 4, box.y + 4);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width - 4, box.y + box.height - 4, { steps: 12 });
    await page.mouse.up();
    expect(await shares()).not.toBe(before);
    await page.getByRole("button", { name: /^reset row/ }).first().click();
    expect(await shares()).toBe(before);
    await picture.focus();
    for (const key of ["ArrowDown", "ArrowRight", "ArrowDown", " "]) await page.keyboard.press(key);
    expect(await shares()).not.toBe(before);
    quiet(watched);
  });
});

describe("the page of a table", () => {
  it("shows what --json says at every λ, by keys and by typing", async () => {
    const watched = await open(browser, url("houses.html"));
    const { page } = watched;
    await slider(page).focus();
    await page.keyboard.press("Home");
    for (const row of houses.path) {
      await page.waitForFunction((l2) => document.querySelector(".card b")!.getAttribute("data-value") === String(l2), row.l2);
      for (const [title, value] of [["validation half squared error", row.validation_loss], ["training half squared error", row.train_loss], ["validation R²", row.validation_r2], ["‖w‖", row.norm], ["degrees of freedom", row.degrees_of_freedom]] as const) {
        const shown = await card(page, title);
        expect(shown).toEqual({ value, text: short(value) });
      }
      await page.keyboard.press("ArrowRight");
    }
    expect((await card(page, "λ")).value).toBe(houses.path.at(-1)!.l2);
    const row = houses.path[9]!;
    await go(page, row.l2);
    expect((await card(page, "validation half squared error")).value).toBe(row.validation_loss);
    await go(page, 0.0333);
    expect((await card(page, "validation half squared error")).text).toMatch(/^≈ /);
    quiet(watched);
  });

  it("refuses a λ out of range, or no number, and stays where it is", async () => {
    const watched = await open(browser, url("houses.html"));
    const { page } = watched;
    await go(page, 0.5);
    for (const [text, words] of [["1000", "1000: λ goes from 1e-4 to 100"], ["-1", "-1: λ goes"], ["ten", "that is no number"], ["", "that is no number"]] as const) {
      await go(page, text);
      expect(await page.locator(".refusal").textContent()).toContain(words);
      expect(await typed(page).getAttribute("aria-invalid")).toBe("true");
      expect((await card(page, "λ")).value).toBe(0.5);
    }
    await go(page, 0.6);
    expect(await page.locator(".refusal").textContent()).toBe("");
    quiet(watched);
  });

  it("predicts an edited row as the command does, at any λ", async () => {
    const watched = await open(browser, url("houses.html"));
    const { page } = watched;
    const line = page.locator(".rows tbody tr").first();
    await line.scrollIntoViewIfNeeded();
    await line.getByLabel("rooms").fill("11");
    await line.getByLabel("area").fill("");
    await line.getByLabel("town").selectOption({ label: "<b>Köln</b>" });
    await line.getByLabel("new").selectOption({ label: "true" });
    await line.getByLabel("built").fill("2021-03-04T06:00:00");
    const odd = await line.getByLabel(HOSTILE).inputValue();
    const csv = `rooms,area,"${HOSTILE.replaceAll('"', '""')}",town,new,built\n11,,${odd},<b>Köln</b>,true,2021-03-04T06:00:00\n`;
    for (const l2 of [1e-4, 0.0123, 0.5, 7, 100]) {
      await go(page, l2);
      const shown = Number(await line.locator(".found span").getAttribute("data-value"));
      const expected = Number(predictions("houses.safetensors", csv, "--l2", String(l2))[0]);
      expect(Math.abs(shown - expected)).toBeLessThanOrEqual(2e-5 * Math.abs(expected));
    }
    await line.getByLabel("rooms").fill("many");
    expect(await line.locator(".found").textContent()).toBe("not a value");
    expect(await line.getByLabel("rooms").getAttribute("aria-invalid")).toBe("true");
    quiet(watched);
  });

  it("keeps names text", async () => {
    const watched = await open(browser, url("houses.html"));
    const { page } = watched;
    expect(await page.title()).toBe("linear model of houses.csv");
    expect(await page.locator("img").count()).toBe(0);
    await page.locator(".rows").scrollIntoViewIfNeeded();
    expect(await page.locator(".rows thead").textContent()).toContain("</script>");
    expect(await page.locator(".rows b").count()).toBe(0);
    quiet(watched);
  });

  it("gives models away that Rust and Python read, and that predict the same", async () => {
    const watched = await open(browser, url("houses.html"));
    const { page } = watched;
    const rows = readFileSync(join(folder, "houses.csv"), "utf8");
    await go(page, 0.0123);
    const [safe, arrays] = [await download(page, /safetensors/), await download(page, /npz/)];
    const own = predictions(safe, rows).map(Number);
    const expected = predictions("houses.safetensors", rows, "--l2", "0.0123").map(Number);
    expect(own).toHaveLength(90);
    own.forEach((value, at) => { expect(Math.abs(value - expected[at]!)).toBeLessThanOrEqual(1e-6 * Math.abs(expected[at]!)); });
    expect(run("inspect", safe)).toContain("0.0123");
    const program = `
import json, struct, sys
import numpy as np
raw = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8 : 8 + length])
take = lambda name: np.frombuffer(raw[8 + length :][slice(*header[name]["data_offsets"])], "<f8").reshape(header[name]["shape"])
arrays = np.load(sys.argv[2])
assert np.array_equal(take("weight"), arrays["weight"]) and np.array_equal(take("bias"), arrays["bias"])
assert arrays["l2"] == [0.0123] and json.loads(header["__metadata__"]["afterfit"])["l2"] == 0.0123
print(json.dumps({"weight": arrays["weight"][0].tolist(), "bias": arrays["bias"][0]}))`;
    const read = JSON.parse(execFileSync(python, ["-c", program, safe, arrays], { encoding: "utf8" })) as { weight: number[]; bias: number };
    // rooms, area, odd, three towns, new, built
    const row = [3, 80, 0.25, 0, 0, 1, 1, 18400];
    const csv = `rooms,area,"${HOSTILE.replaceAll('"', '""')}",town,new,built\n3,80,0.25,Ulm,true,2020-05-18\n`;
    const byHand = row.reduce((sum, value, at) => sum + value * read.weight[at]!, read.bias);
    expect(Math.abs(byHand - Number(predictions(safe, csv)[0]))).toBeLessThan(1e-6);
    quiet(watched);
  });

  it("gives away its table, its charts and its command", async () => {
    const watched = await open(browser, url("houses.html"), { permissions: ["clipboard-read", "clipboard-write"] });
    const { page } = watched;
    const lines = readFileSync(await download(page, /\.csv/), "utf8").trim().split("\n");
    expect(lines).toHaveLength(32);
    const column = lines[0]!.split(",").indexOf("validation_loss");
    expect(lines.slice(1).map((line) => Number(line.split(",")[column]))).toEqual(houses.path.map((row) => row.validation_loss));
    const charts = await page.locator("section", { has: page.locator(".chart") }).locator("h2").allTextContents();
    expect(charts.length).toBeGreaterThanOrEqual(4);
    for (const name of charts) {
      const svg = readFileSync(await download(page, `Save the chart “${name}” as SVG`), "utf8");
      expect(svg).toMatch(/^<svg[^>]+xmlns="http:\/\/www.w3.org\/2000\/svg"/);
      const png = readFileSync(await download(page, `Save the chart “${name}” as PNG`));
      expect(png.subarray(1, 4).toString()).toBe("PNG");
    }
    await go(page, 0.25);
    await page.getByRole("button", { name: /^Copy the command/ }).click();
    await page.waitForSelector(".done:not(:empty)");
    const said = await page.locator(".done").textContent();
    expect(said).toContain("afterfit fit houses.csv --target price --missing mean --l2 0.25 -o model.safetensors");
    run(...said!.replace("copied: ", "").split(" ").slice(1));
    expect(run("inspect", "model.safetensors")).toContain("0.25");
    quiet(watched);
  });
});

describe("the page of a kernel model", () => {
  it("says of its rows what the command does, at any λ, and what it lacks", async () => {
    const watched = await open(browser, url("kernel.html"));
    const { page } = watched;
    const lines = page.locator(".rows tbody tr");
    await lines.first().scrollIntoViewIfNeeded();
    const all = readFileSync(join(folder, "houses.csv"), "utf8").trim().split("\n");
    const numbers = (await lines.locator("th").allTextContents()).map(Number);
    const own = [all[0]!, ...numbers.map((row) => all[row]!)].join("\n") + "\n";
    for (const l2 of [1e-3, 0.0123, 0.5, 10]) {
      await go(page, l2);
      const shown = await lines.locator(".found span").evaluateAll((spans) => spans.map((span) => Number(span.getAttribute("data-value"))));
      const expected = predictions("kernel.safetensors", own, "--l2", String(l2)).map(Number);
      expect(shown).toHaveLength(8);
      shown.forEach((value, at) => { expect(Math.abs(value - expected[at]!)).toBeLessThanOrEqual(1e-5 * Math.abs(expected[at]!)); });
    }
    const coefficients = page.locator("section", { hasText: "Largest coefficients" }).locator(".chart");
    await coefficients.scrollIntoViewIfNeeded();
    expect(await coefficients.textContent()).toMatch(/row \d+/);
    const before = await coefficients.innerHTML();
    await go(page, 1e-3);
    expect(await coefficients.innerHTML()).not.toBe(before);
    expect(await page.locator(".rows input, .rows select, .rows button").count()).toBe(0);
    expect(await page.getByRole("button", { name: /^Download this model/ }).count()).toBe(0);
    expect(await page.locator("li", { hasText: "A kernel model is its training rows" }).count()).toBe(1);
    quiet(watched);
  });
});

describe("the page of a network's dial", () => {
  it("shows what the command says of each reading, and the averaging", async () => {
    const watched = await open(browser, url("network.html"));
    const { page } = watched;
    await slider(page).focus();
    const steps = page.locator("section", { hasText: "Averaging weights over the run" }).locator(".chart");
    await steps.scrollIntoViewIfNeeded();
    const seen = new Set<string>();
    for (const key of ["Home", "PageUp", "PageUp", "End"]) {
      await page.keyboard.press(key);
      await page.waitForTimeout(100);
      seen.add(await steps.innerHTML());
      const l2 = (await card(page, "λ")).value;
      const { outputs } = JSON.parse(run("dial", "read", "network.dial", "--l2", String(l2), "-o", "there.safetensors", "--force", "--json")) as { outputs: { error: number; remaining: number; status: string }[] };
      const [mass, error] = [await card(page, "unspent mass"), await card(page, "reading off by ≤")];
      expect(Math.abs(mass.value - outputs[0]!.remaining)).toBeLessThanOrEqual(1e-12);
      expect(error.value).toBe(outputs[0]!.error);
      expect(await page.locator(".standing span").textContent()).toBe(outputs[0]!.status);
    }
    expect(seen.size).toBe(4);
    quiet(watched);
  });
});

describe("every page", () => {
  it.each([
    ["demo", "afterfit-demo/report.html"],
    ["table", "houses.html"],
    ["kernel", "kernel.html"],
    ["averages", "average.html"],
    ["a network's dial", "network.html"],
  ])("keeps nobody out: %s", async (name, file) => {
    for (const colorScheme of ["light", "dark"] as const) {
      const watched = await open(browser, url(file), { colorScheme });
      const { page } = watched;
      await page.evaluate(() => { document.querySelectorAll("details").forEach((all) => { all.open = true; }); });
      for (const y of [0, 700, 1400, 2100, 2800]) {
        await page.evaluate((y) => { window.scrollTo(0, y); }, y);
        await page.waitForTimeout(60);
      }
      expect(await serious(page), `${name}, ${colorScheme}`).toEqual([]);
      // (What axe-core itself complains about is not the page's.)
      expect(watched.requests).toEqual([]);
    }
  });

  it.each([360, 768, 1280, 2560])("fits %i pixels, and does not jump", async (width) => {
    for (const file of ["afterfit-demo/report.html", "houses.html", "kernel.html", "average.html", "network.html"]) {
      const watched = await open(browser, url(file), { viewport: { width, height: 900 } });
      const { page } = watched;
      const sizes = () => page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth, document.documentElement.scrollHeight]);
      await page.waitForTimeout(100);
      const [content, screen, height] = (await sizes()) as [number, number, number];
      expect(content).toBeLessThanOrEqual(screen);
      // No label of a chart is cut: neither here nor where it is saved.
      const cut = await page.evaluate(() => [...document.querySelectorAll(".chart svg text")].filter((text) => {
        const [own, all] = [text.getBoundingClientRect(), text.closest("svg")!.getBoundingClientRect()];
        return own.width > 0 && (own.left < all.left || own.right > all.right);
      }).map((text) => text.textContent));
      expect(cut, file).toEqual([]);
      const keep = process.env.PICTURES;
      if (keep) await page.screenshot({ path: join(keep, `${file.replace(/\W/g, "-")}-${width}.png`), fullPage: true });
      await slider(page).focus();
      for (const key of ["ArrowRight", "ArrowRight", "End", "PageDown", "Home"]) {
        await page.keyboard.press(key);
        await page.waitForTimeout(100);
        expect(Math.abs((await sizes())[2]! - height), `${file}, ${key}`).toBeLessThanOrEqual(2);
      }
      quiet(watched);
    }
  });

  it("prints all of it, and says so where there is no JavaScript", async () => {
    const { page } = await open(browser, url("houses.html"));
    expect((await page.pdf()).length).toBeGreaterThan(20_000);
    // Paper is light, whatever the screen is.
    const ink = () => page.locator(".afterfit").evaluate((node) => getComputedStyle(node).color);
    await page.emulateMedia({ colorScheme: "dark" });
    expect(await ink()).toBe("rgb(230, 230, 227)");
    await page.emulateMedia({ media: "print", colorScheme: "dark" });
    expect(await ink()).toBe("rgb(34, 34, 34)");
    const context = await browser.newContext({ javaScriptEnabled: false });
    const silent = await context.newPage();
    await silent.goto(url("houses.html"));
    expect(await silent.locator("noscript").textContent()).toContain("JavaScript");
  });
});

describe("classes", () => {
  it("of two have probabilities as the command says", async () => {
    const lines = Array.from({ length: 80 }, (_, i) => `${((i * 37) % 80) / 10},${((i * 53) % 80) / 20},${(i * 37) % 80 > 35 + ((i * 29) % 11) ? "rose" : "tulip"}`);
    writeFileSync(join(folder, "flowers.csv"), ["a,b,kind", ...lines].join("\n") + "\n");
    run("fit", "flowers.csv", "--target", "kind", "--l2", "1e-3..1:9", "--cv", "4", "-o", "flowers.safetensors", "--report", "flowers.html");
    const watched = await open(browser, url("flowers.html"));
    const { page } = watched;
    await go(page, 0.02);
    const line = page.locator(".rows tbody tr").first();
    await line.scrollIntoViewIfNeeded();
    await line.getByLabel("a", { exact: true }).fill("4.4");
    await line.getByLabel("b", { exact: true }).fill("1.25");
    const [, ...expected] = predictions("flowers.safetensors", "a,b\n4.4,1.25\n", "--l2", "0.02", "--probabilities")[0]!.split(",");
    for (const [at, name] of ["rose", "tulip"].entries()) {
      const shown = Number(await line.locator("li", { hasText: name }).locator(".share").getAttribute("data-value"));
      expect(Math.abs(shown - Number(expected[at]))).toBeLessThan(1e-5);
    }
    // Every row is held out of one fold.
    const counts = await page.locator(".confusion tr td:not(.corner)").allTextContents();
    expect(counts.map(Number).reduce((sum, count) => sum + count, 0)).toBe(80);
    quiet(watched);
  });

  it("of averages have a picture of the averaging", async () => {
    run("fit", "flowers.csv", "--target", "kind", "--l2", "1e-3..1:9", "--average-only", "--optimizer", "sgd", "--dial", "run.dial", "--report", "averages.html");
    run("dial", "info", "run.dial", "--report", "dial.html");
    for (const file of ["averages.html", "dial.html"]) {
      const watched = await open(browser, url(file));
      const { page } = watched;
      const area = page.locator("section", { hasText: "Averaging weights over the run" }).locator(".chart");
      await area.scrollIntoViewIfNeeded();
      await go(page, 1);
      const before = await area.innerHTML();
      await slider(page).focus();
      await page.keyboard.press("Home");
      await page.waitForTimeout(100);
      expect(await area.innerHTML()).not.toBe(before);
      expect(await page.locator(".standing").textContent()).toContain("approximation");
      await go(page, 0.05);
      // What remains is not taken from rows next to it.
      const unspent = await card(page, "unspent mass");
      const { outputs } = JSON.parse(run("dial", "read", "run.dial", "--l2", "0.05", "-o", "there.safetensors", "--force", "--json")) as { outputs: { remaining: number }[] };
      expect(unspent.text).not.toContain("≈");
      expect(Math.abs(unspent.value - outputs[0]!.remaining)).toBeLessThanOrEqual(1e-12);
      const model = await download(page, /safetensors/);
      run("dial", "read", "run.dial", "--l2", "0.05", "-o", "read.safetensors", "--force");
      const asked = "a,b\n4.4,1.25\n1,2\n";
      const [own, expected] = [model, "read.safetensors"].map((name) => predictions(name, asked, "--probabilities").map((line) => Number(line.split(",")[1])));
      own!.forEach((share, at) => { expect(Math.abs(share - expected![at]!)).toBeLessThan(5e-3); });
      quiet(watched);
    }
  });
});
