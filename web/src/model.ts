// The model at a strength, and what it predicts.

import { biasesOf, weightsOf, type Packed } from "./data";
import { coefficients, type Nodes } from "./nodes";

/** `weights[output · features + feature]`. */
export interface Model {
  l2: number;
  weights: Float64Array;
  bias: Float64Array;
}

/** The combination of models that lie one behind the other. (Four at a time, one type, nothing else: it runs at every frame.) */
function combine(all: Float32Array, shares: number[]): Float64Array {
  const size = all.length / shares.length;
  const found = new Float64Array(size);
  const start = (node: number) => Math.min(node, shares.length - 1) * size;
  for (let node = 0; node < shares.length; node += 4) {
    const [a, b, c, d] = [shares[node]!, shares[node + 1] ?? 0, shares[node + 2] ?? 0, shares[node + 3] ?? 0];
    const [p, q, r, s] = [start(node), start(node + 1), start(node + 2), start(node + 3)];
    for (let i = 0; i < size; i++) {
      found[i]! += a * all[p + i]! + b * all[q + i]! + c * all[r + i]! + d * all[s + i]!;
    }
  }
  return found;
}

/** Every model of a path: a combination of those at its nodes. */
export class Path {
  readonly outputs: number;
  readonly features: number;
  /** How far its models can be from the exact ones, relative to their length. */
  readonly error: number;
  private readonly weights: Float32Array;
  private readonly biases: Float64Array;
  private readonly nodes: Nodes;

  constructor(packed: Packed) {
    this.nodes = { from: packed.from, to: packed.to, count: packed.count };
    this.error = packed.error + packed.rounding;
    this.weights = weightsOf(packed);
    this.biases = biasesOf(packed);
    this.outputs = this.biases.length / packed.count;
    this.features = this.weights.length / packed.count / this.outputs;
  }

  get range(): [number, number] {
    return [this.nodes.from, this.nodes.to];
  }

  at(l2: number): Model {
    const shares = coefficients(this.nodes, l2);
    const bias = new Float64Array(this.outputs).map((_, at) => shares.reduce((sum, share, node) => sum + share * this.biases[node * this.outputs + at]!, 0));
    return { l2, weights: combine(this.weights, shares), bias };
  }

  /** One weight at every strength. */
  trace(at: number, l2: number[]): number[] {
    return l2.map((l2) => coefficients(this.nodes, l2).reduce((sum, share, node) => sum + share * this.weights[node * this.outputs * this.features + at]!, 0));
  }
}

/** What a model says of a row: one score for each class or target; a softmax' are shares that sum to 1. */
export function predict(kind: string, model: Model, features: ArrayLike<number>): number[] {
  const scores = Array.from(model.bias, (bias, output) => {
    const first = output * features.length;
    let score = bias;
    for (let i = 0; i < features.length; i++) {
      score += features[i]! * model.weights[first + i]!;
    }
    return score;
  });
  if (kind === "poisson") {
    return scores.map(Math.exp);
  }
  if (kind !== "softmax") {
    return scores;
  }
  // (Of two classes, the one score is the log-odds of the second.)
  const all = scores.length === 1 ? [0, scores[0]!] : scores;
  const top = Math.max(...all);
  const exps = all.map((score) => Math.exp(score - top));
  const total = exps.reduce((sum, value) => sum + value, 0);
  return exps.map((value) => value / total);
}

/** The places of the largest numbers, largest first, without sorting all of them. */
export function largest(count: number, length: number, size: (at: number) => number): number[] {
  const found: number[] = [];
  const sizes: number[] = [];
  for (let at = 0; at < length; at++) {
    const own = size(at);
    if (found.length === count && own <= sizes[count - 1]!) continue;
    let place = found.length;
    while (place > 0 && sizes[place - 1]! < own) place--;
    found.splice(place, 0, at);
    sizes.splice(place, 0, own);
    found.length = Math.min(found.length, count);
    sizes.length = found.length;
  }
  return found;
}
