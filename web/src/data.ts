// What a page is made from: the JSON that the command writes (crates/afterfit-cli/src/page/mod.rs has it in Rust).

import type { Nodes, Runs } from "./nodes";

/** What is known of one strength; numbers that are not finite are null. */
export interface Row {
  l2: number;
  train_loss?: number | null;
  validation_loss?: number | null;
  validation_error?: number | null;
  validation_accuracy?: number | null;
  validation_r2?: number | null;
  validation_score?: number | null;
  norm?: number | null;
  degrees_of_freedom?: number | null;
  excess?: number | null;
  distance?: number | null;
  resolved?: boolean;
  /** Of a dial: no weight is further from the average than this. */
  error?: number | null;
  /** Of a run: mass that no step has spent. */
  remaining?: number | null;
  /** exact, approximation or heuristic, where that is not the same for all. */
  standing?: string;
}

/** A column of the table, and where its features begin. */
export interface Column {
  name: string;
  first: number;
  kind: "number" | "boolean" | "date" | "categorical";
  /** What a missing value becomes; null where the model takes none. */
  mean: number | null;
  values: string[];
}

/** A row of the table, in features. */
export interface Sample {
  row: number;
  truth: string;
  features: number[];
}

/** The models at the nodes. */
export interface Packed extends Nodes {
  /** How far a combination is from the exact weights, relative to their length. */
  error: number;
  /** What rounding adds to that. */
  rounding: number;
  type: "f32" | "f16";
  /** What the weights are to be multiplied with. */
  scale: number;
  /** `[node][output][feature]`, little end first, base64. */
  weights: string;
  /** `[node][output]`, f64. */
  biases: string;
}

/** How much the iterates at some steps count, at some strengths: `[strength][step]`. */
export interface Averaging {
  l2: number[];
  steps: number[];
  weights: number[][];
}

export interface PageData {
  title: string;
  /** linear, softmax, poisson, kernel; null where there is no single model. */
  model: string | null;
  target: string | null;
  classes: string[] | null;
  /** The names of all features; of kernel models, of the training rows. */
  features: string[];
  image: [number, number] | null;
  rows: Row[];
  best: number | null;
  one_se: number | null;
  loss: string;
  /** What `validation_score` is, where rows have one. */
  score: string | null;
  /** Of kernel models: their coefficients of each training row. */
  path: Packed | null;
  /** What a kernel model says of each sample, `[sample][output]` in the place of weights. */
  scores: Packed | null;
  /** What a model file says of itself. */
  about: Record<string, unknown> | null;
  /** `[row][truth][found]`. */
  confusions: number[][][];
  columns: Column[];
  samples: Sample[];
  /** Whether the models have seen the samples in training. */
  samples_seen: boolean;
  averaging: Averaging | null;
  /** What each step of a run without momentum does to λ's mass; null where rows alone say what remains. */
  runs: Runs | null;
  /** exact, approximation or heuristic, and why. */
  standing: string;
  reason: string;
  /** The command that makes the model at λ, {l2} standing for it. */
  command: string;
  notes: string[];
  /** Another name for the strength, `scale · λ^power`. */
  unit: { name: string; scale: number; power: number } | null;
  /** Whether a server evaluates the strengths that are asked for. */
  live: boolean;
}

function bytes(base64: string): ArrayBuffer {
  const text = atob(base64);
  const buffer = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) {
    buffer[i] = text.charCodeAt(i);
  }
  return buffer.buffer;
}

/** Numbers of two bytes: sign, five bits of exponent, ten of fraction. (None is infinite.) */
function halves(buffer: ArrayBuffer, scale: number): Float32Array {
  const half = (bits: number): number => {
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
  };
  const every = Float32Array.from({ length: 1 << 16 }, (_, bits) => half(bits) * scale);
  return Float32Array.from(new Uint16Array(buffer), (bits) => every[bits]!);
}

export const weightsOf = (path: Packed): Float32Array =>
  path.type === "f16" ? halves(bytes(path.weights), path.scale) : new Float32Array(bytes(path.weights));

export const biasesOf = (path: Packed): Float64Array => new Float64Array(bytes(path.biases));
