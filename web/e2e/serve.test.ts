// `afterfit serve`: a dial whose models a real command evaluates, in a real Chromium; killed, restarted, and asked by strangers.

import { spawn, type ChildProcess } from "node:child_process";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { join } from "node:path";

import type { Browser } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

import { AFTERFIT, card, download, folder, go, launch, open, run, serious, slider } from "./browser";

const python = process.env.PYTHON ?? "python3";
let browser: Browser;
let server: Served | null = null;

interface Served {
  process: ChildProcess;
  url: string;
  measured: number;
}

/** Starts it and waits for its address. */
function serve(): Promise<Served> {
  const child = spawn(AFTERFIT, ["serve", "run.dial", "--eval", `${python} evaluate.py {}`, "--json"], { cwd: folder, stdio: ["ignore", "pipe", "ignore"] });
  return new Promise((resolve, reject) => {
    let text = "";
    child.stdout.on("data", (part: Buffer) => {
      text += part.toString();
      if (text.includes("\n")) resolve({ process: child, ...(JSON.parse(text) as { url: string; measured: number }) });
    });
    child.on("exit", (code) => { reject(new Error(`serve ended with ${code}`)); });
  });
}

const killed = (child: ChildProcess, signal: NodeJS.Signals): Promise<void> => new Promise((done) => {
  child.removeAllListeners("exit");
  child.on("exit", () => { done(); });
  child.kill(signal);
});

/** A request as anyone could send it; its status and its text. */
function ask(url: string, options: { method?: string; headers?: Record<string, string>; body?: string } = {}): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const sent = request(url, { method: options.method ?? "GET", headers: options.headers ?? {} }, (answer) => {
      let text = "";
      answer.on("data", (part: Buffer) => { text += part.toString(); });
      answer.on("end", () => { resolve({ status: answer.statusCode ?? 0, text }); });
    });
    sent.on("error", reject);
    sent.end(options.body);
  });
}

const scores = (): { l2: number; score: number }[] => {
  try {
    return (JSON.parse(readFileSync(join(folder, "run.dial.scores.json"), "utf8")) as { scores: { l2: number; score: number }[] }).scores;
  } catch {
    return [];
  }
};

beforeAll(async () => {
  const lines = Array.from({ length: 80 }, (_, i) => `${((i * 37) % 80) / 10},${((i * 53) % 80) / 20},${(i * 37) % 80 > 35 + ((i * 29) % 23) ? "rose" : "tulip"}`);
  writeFileSync(join(folder, "flowers.csv"), ["a,b,kind", ...lines].join("\n") + "\n");
  run("fit", "flowers.csv", "--target", "kind", "--l2", "1e-3..1:9", "--average-only", "--dial", "run.dial");
  // The log-loss of the model at hand, on the table.
  writeFileSync(join(folder, "evaluate.py"), `
import csv, math, subprocess, sys
said = subprocess.run([${JSON.stringify(AFTERFIT)}, "predict", sys.argv[1], "flowers.csv", "--probabilities", "-q"], capture_output=True, text=True, check=True).stdout
truth = [row["kind"] for row in csv.DictReader(open("flowers.csv"))]
rows = list(csv.DictReader(said.splitlines()))
print("log-likelihood", sum(math.log(float(row[f"p({kind})"])) for row, kind in zip(rows, truth, strict=True)) / len(truth))
`);
  browser = await launch();
  server = await serve();
}, 300_000);

afterAll(async () => {
  await browser.close();
  if (server) await killed(server.process, "SIGKILL");
});

describe("a served dial", () => {
  it("evaluates where the slider stops, and draws a growing curve", async () => {
    const { page, complaints, requests } = await open(browser, server!.url);
    await go(page, 0.05);
    await page.waitForFunction(() => document.querySelectorAll("circle").length >= 1, null, { timeout: 60_000 });
    const [first] = scores();
    expect(first!.l2).toBe(0.05);
    expect(first!.score).toBeLessThan(0);
    expect((await card(page, "score")).value).toBe(first!.score);
    await slider(page).focus();
    await page.keyboard.press("End");
    await page.waitForFunction(() => document.querySelectorAll("circle").length >= 2, null, { timeout: 60_000 });
    // The same number as by hand.
    run("dial", "read", "run.dial", "--l2", "0.05", "-o", "by-hand.safetensors", "--force");
    const { execFileSync } = await import("node:child_process");
    const byHand = execFileSync(python, ["evaluate.py", "by-hand.safetensors"], { cwd: folder, encoding: "utf8" });
    expect(first!.score).toBeCloseTo(Number(byHand.split(" ")[1]), 12);
    expect(await serious(page)).toEqual([]);
    const keep = process.env.PICTURES;
    if (keep) await page.screenshot({ path: join(keep, "serve.png"), fullPage: true });
    expect(complaints).toEqual([]);
    expect(requests.every((url) => url.startsWith(server!.url))).toBe(true);
    // Models that were evaluated are gone again.
    expect(readdirSync(folder).filter((name) => name.startsWith(".") || name.startsWith("served"))).toEqual([]);
  });

  it("gives away what dial read writes", async () => {
    const { page, complaints } = await open(browser, server!.url);
    await go(page, 0.05);
    for (const kind of ["safetensors", "npz"]) {
      const given = await download(page, `Download this model (.${kind})`);
      expect(given.endsWith(`model-l2-0.05.${kind}`)).toBe(true);
      run("dial", "read", "run.dial", "--l2", "0.05", "-o", `by-hand.${kind}`, "--force");
      expect(readFileSync(given).equals(readFileSync(join(folder, `by-hand.${kind}`)))).toBe(true);
    }
    expect(complaints).toEqual([]);
    expect(readdirSync(folder).filter((name) => name.startsWith(".") || name.startsWith("served"))).toEqual([]);
  });

  it("loses nothing when it is killed", async () => {
    const before = scores();
    expect(before.length).toBeGreaterThanOrEqual(2);
    await killed(server!.process, "SIGKILL");
    const old = server!.url;
    server = await serve();
    expect(server.measured).toBe(before.length);
    expect(server.url).not.toBe(old);
    const { page } = await open(browser, server.url);
    expect(await page.locator("circle").count()).toBe(before.length);
    await go(page, 0.05);
    expect((await card(page, "score")).value).toBe(before[0]!.score);
    await page.waitForTimeout(1500);
    expect(scores()).toEqual(before);
  });

  it("answers nobody but its own page", async () => {
    const url = server!.url;
    const { host, port } = new URL(url);
    const post = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ l2: 0.2 }) };
    expect((await ask(`${url}known`)).status).toBe(200);
    for (const path of ["/", "/known", "/evaluate", "/0123456789/", `${new URL(url).pathname.slice(0, -2)}x/`]) expect((await ask(`http://${host}${path}`)).status).toBe(403);
    for (const path of ["nothing", "../run.dial", "..%2frun.dial", "known/", "evaluate.py"]) expect([403, 404]).toContain((await ask(`${url}${path}`)).status);
    for (const name of ["evil.example", `evil.example:${port}`, "127.0.0.1", `127.0.0.2:${port}`]) expect((await ask(url, { headers: { host: name } })).status).toBe(421);
    for (const origin of ["http://evil.example", "null", `http://localhost:${port}`]) {
      expect((await ask(`${url}evaluate`, { ...post, headers: { ...post.headers, origin } })).status).toBe(403);
    }
    expect((await ask(url, { headers: { "sec-fetch-site": "cross-site" } })).status).toBe(403);
    expect((await ask(`${url}evaluate`)).status).toBe(405);
    expect((await ask(`${url}evaluate`, { ...post, headers: { "content-type": "text/plain" } })).status).toBe(415);
    expect((await ask(`${url}evaluate`, { ...post, body: "x".repeat(5000) })).status).toBe(413);
    expect((await ask(`${url}evaluate`, { ...post, body: "{}" })).status).toBe(400);
    for (const l2 of [0, -1, 1e9]) {
      const { status, text } = await ask(`${url}evaluate`, { ...post, body: JSON.stringify({ l2 }) });
      expect([status, text]).toEqual([400, expect.stringContaining("it must be from 0.001 to 1") as string]);
    }
    for (const query of ["", "?l2=9", "?l2=x", "?l2=0.05&format=pt", "?l2=NaN"]) expect((await ask(`${url}model${query}`)).status).toBe(400);
    expect((await ask(`http://${host}/model?l2=0.05`)).status).toBe(403);
    expect((await ask(`${url}model?l2=0.05`, { method: "POST" })).status).toBe(405);
    const before = scores();
    await new Promise((done) => setTimeout(done, 1000));
    expect(scores()).toEqual(before);
  });

  it("says what went wrong with an evaluation, and continues", async () => {
    const good = readFileSync(join(folder, "evaluate.py"), "utf8");
    writeFileSync(join(folder, "evaluate.py"), "import sys; sys.exit(3)");
    const { page } = await open(browser, server!.url);
    await go(page, 0.3);
    await page.waitForFunction(() => document.querySelector(".standing b")!.textContent.includes("ended with"), null, { timeout: 60_000 });
    expect(scores().some(({ l2 }) => l2 === 0.3)).toBe(false);
    writeFileSync(join(folder, "evaluate.py"), good);
    await go(page, 0.31);
    await expect.poll(() => scores().some(({ l2 }) => l2 === 0.31), { timeout: 60_000 }).toBe(true);
  });

  it("is refused for what is no dial, and for a command that names no file", () => {
    expect(() => run("serve", "flowers.csv", "--eval", "true {}")).toThrow();
    expect(() => run("serve", "run.dial", "--eval", "true")).toThrow();
  });
});
