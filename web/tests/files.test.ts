import { unzipSync } from "fflate";
import { describe, expect, it } from "vitest";

import { short } from "../src/dom";
import { csv, npz, safetensors } from "../src/files";
import { Judged } from "../src/judged";
import { numberOf } from "../src/rows";

const model = { l2: 0.03, weights: Float64Array.of(1, -2.5, 1e-300, 3, 4, 5), bias: Float64Array.of(0.5, -0.5) };
const size = { outputs: 2, features: 3 };
const numbers = (bytes: Uint8Array) => Array.from(new Float64Array(bytes.slice().buffer));

describe("safetensors", () => {
  it("has a header, padded to eight bytes, and the numbers behind it", () => {
    const file = safetensors({ kind: "model", l2: 1, path: { from: 1 }, chosen: { best: 1 }, classes: ["ä", "λ"] }, size, model, true);
    const length = Number(new DataView(file.buffer).getBigUint64(0, true));
    expect(length % 8).toBe(0);
    const header = JSON.parse(new TextDecoder().decode(file.slice(8, 8 + length))) as Record<string, Record<string, unknown>>;
    expect(header.weight).toEqual({ dtype: "F64", shape: [2, 3], data_offsets: [16, 64] });
    expect(header.bias).toEqual({ dtype: "F64", shape: [2], data_offsets: [0, 16] });
    expect(numbers(file.slice(8 + length))).toEqual([...model.bias, ...model.weights]);
    const about = JSON.parse(header.__metadata__!.afterfit as string) as Record<string, unknown>;
    expect(about).toEqual({ kind: "model", l2: 0.03, path: null, chosen: null, certificate: null, resolved: true, classes: ["ä", "λ"] });
  });
});

describe("npz", () => {
  it("holds arrays as numpy writes them", () => {
    const files = unzipSync(npz(size, model));
    expect(Object.keys(files).sort()).toEqual(["bias.npy", "l2.npy", "weight.npy"]);
    const weight = files["weight.npy"]!;
    const length = weight[8]! + 256 * weight[9]!;
    expect((10 + length) % 64).toBe(0);
    const text = new TextDecoder().decode(weight.slice(10, 10 + length));
    expect(text.trim()).toBe("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }");
    expect(numbers(weight.slice(10 + length))).toEqual([...model.weights]);
    expect(npz(size, model)).toEqual(npz(size, model));
  });
});

describe("the table", () => {
  it("has a line for each strength and a column for each number", () => {
    expect(csv([{ l2: 1e-5, train_loss: 0.25 }, { l2: 1, train_loss: null, resolved: true }])).toBe("l2,train_loss,resolved\n0.00001,0.25,\n1,,true\n");
  });
});

describe("numbers", () => {
  it("are short where people read them", () => {
    expect([0.123456, 1e-5, 123456, 1.5e-9, 0, 42].map((number) => short(number))).toEqual(["0.1235", "1e-5", "1.23e5", "1.5e-9", "0", "42"]);
    expect([null, undefined, NaN, Infinity].map((number) => short(number))).toEqual(["–", "–", "–", "–"]);
  });
  it("are decimal where people type them", () => {
    expect(["1e-3", ".5", "-2.", "+7"].map(numberOf)).toEqual([0.001, 0.5, -2, 7]);
    for (const text of ["", "0x10", "1e", "ten", "Infinity", "1,5"]) expect(numberOf(text)).toBeNaN();
  });
});

describe("judged strengths", () => {
  const data = { rows: [{ l2: 1, norm: 4 }, { l2: 0.01, norm: 2 }, { l2: 0.1 }], best: 1, one_se: 0 };
  const judged = new Judged(data);
  it("rise, and know their places", () => {
    expect(judged.rows.map((row) => row.l2)).toEqual([0.01, 0.1, 1]);
    expect([judged.best?.l2, judged.oneSe?.l2]).toEqual([0.01, 1]);
    expect(judged.nearest(0.9)).toEqual({ row: data.rows[0], place: 0 });
    expect(judged.nearest(0.05).place).toBe(2);
  });
  it("are as they are, and on a line over ln λ between", () => {
    expect([judged.at(0.01, "norm"), judged.at(1, "norm")]).toEqual([2, 4]);
    expect(judged.at(0.1, "norm")).toBeCloseTo(3, 12);
    expect([judged.at(0.001, "norm"), judged.at(0.1, "error")]).toEqual([null, null]);
  });
});
