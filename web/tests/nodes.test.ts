// The page's mathematics against the library's: `crates/afterfit-cli/tests/cli/page.rs` writes what is expected here.

import { readFileSync } from "node:fs";

import { describe, expect, it } from "vitest";

import type { Packed } from "../src/data";
import { largest, Path, predict } from "../src/model";
import { coefficients, remaining, values, type Runs } from "../src/nodes";

interface Set {
  path: Packed;
  runs: Runs;
  /** Rows of the strength, its coefficients, the reading (three weights and an intercept), and what remains of its mass. */
  rows: number[][];
}

const here = new URL(".", import.meta.url);

function sets(): Set[] {
  const paths = JSON.parse(readFileSync(new URL("fixture.json", here), "utf8")) as Pick<Set, "path" | "runs">[];
  const bytes = readFileSync(new URL("fixture.f64", here));
  const numbers = new Float64Array(new Uint8Array(bytes).buffer);
  let at = 0;
  return paths.map(({ path, runs }) => {
    const width = 1 + path.count + 5;
    const rows = Array.from({ length: 250 }, (_, row) => Array.from(numbers.subarray(at + row * width, at + (row + 1) * width)));
    at += 250 * width;
    return { path, runs, rows };
  });
}

describe("a reading", () => {
  it.each(sets())("has the library's coefficients at 250 random strengths of $path.count nodes", ({ path, rows }) => {
    for (const [l2, ...expected] of rows) {
      const found = coefficients(path, l2!);
      found.forEach((share, node) => {
        expect(Math.abs(share - expected[node]!)).toBeLessThanOrEqual(1e-12 * Math.max(1, Math.abs(expected[node]!)));
      });
    }
  });

  it.each(sets())("is the library's to 1e-6 of its length, with $path.count nodes", ({ path: packed, rows }) => {
    const path = new Path(packed);
    expect([path.outputs, path.features]).toEqual([1, 3]);
    for (const row of rows) {
      const expected = row.slice(1 + packed.count);
      const { weights, bias } = path.at(row[0]!);
      const length = Math.hypot(...expected.slice(0, 3));
      const off = Math.hypot(...expected.slice(0, 3).map((weight, at) => weight - weights[at]!));
      expect(off).toBeLessThanOrEqual(1e-6 * length);
      expect(Math.abs(bias[0]! - expected[3]!)).toBeLessThanOrEqual(1e-12 * Math.max(1, Math.abs(expected[3]!)));
    }
  });

  it.each(sets())("leaves the mass that the library leaves, at the strengths of $path.count nodes", ({ path, runs, rows }) => {
    for (const row of rows) {
      const expected = row[1 + path.count + 4]!;
      const found = remaining(runs, row[0]!);
      expect(Math.abs(found - expected)).toBeLessThanOrEqual(1e-12);
      expect(Math.abs(found - expected)).toBeLessThanOrEqual(1e-11 * expected + 1e-300);
    }
    expect(remaining([], 3)).toBe(1);
  });

  it("is the node itself at a node, and sums to 1 elsewhere", () => {
    const nodes = { from: 1e-3, to: 10, count: 7 };
    const all = values(nodes);
    expect(coefficients(nodes, all[3]!)).toEqual([0, 0, 0, 1, 0, 0, 0]);
    expect(coefficients(nodes, 0.3).reduce((sum, share) => sum + share, 0)).toBeCloseTo(1, 12);
    expect(all[0]).toBeGreaterThanOrEqual(1e-3);
    expect(all[6]).toBeLessThanOrEqual(10);
  });
});

describe("halves", () => {
  it("are read as what they are", () => {
    // 1, −2, the smallest number above 0, 0.333 in ten bits; times 3.
    const bits = Uint16Array.of(0x3c00, 0xc000, 0x0001, 0x3555);
    const weights = Buffer.from(bits.buffer).toString("base64");
    const biases = Buffer.from(Float64Array.of(0).buffer).toString("base64");
    const path = new Path({ from: 1, to: 2, count: 1, error: 0, rounding: 0, type: "f16", scale: 3, weights, biases });
    const found = path.at(1.5).weights;
    [3, -6, 3 * 2 ** -24, 3 * 0.333251953125].forEach((number, at) => {
      expect(found[at]).toBeCloseTo(number, 6);
    });
  });
});

describe("a prediction", () => {
  const model = { l2: 1, weights: Float64Array.of(1, 2, -1, 0.5), bias: Float64Array.of(0.1, -0.2) };
  it("is a number, a count, or shares of classes", () => {
    const [a, b] = [0.1 + 3 + 8, -0.2 - 3 + 2];
    expect(predict("linear", model, [3, 4])).toEqual([a, b]);
    expect(predict("poisson", model, [3, 4])).toEqual([Math.exp(a), Math.exp(b)]);
    const shares = predict("softmax", model, [3, 4]);
    expect(shares[0]! / shares[1]!).toBeCloseTo(Math.exp(a - b), 3);
    expect(shares[0]! + shares[1]!).toBeCloseTo(1, 12);
  });
  it("of two classes comes from the log-odds of the second, however large", () => {
    const one = { l2: 1, weights: Float64Array.of(1000), bias: Float64Array.of(0) };
    expect(predict("softmax", one, [1])).toEqual([0, 1]);
    expect(predict("softmax", one, [-1])).toEqual([1, 0]);
    expect(predict("softmax", one, [0])).toEqual([0.5, 0.5]);
  });
});

describe("the largest", () => {
  it("are found in order", () => {
    const numbers = Array.from({ length: 1000 }, (_, i) => (i * 7919) % 1009);
    const expected = numbers.map((_, at) => at).sort((a, b) => numbers[b]! - numbers[a]!).slice(0, 12);
    expect(largest(12, numbers.length, (at) => numbers[at]!)).toEqual(expected);
    expect(largest(5, 2, (at) => at)).toEqual([1, 0]);
  });
});
