// The only mathematics of the page: how much of each node's model is in the model at λ, and what λ leaves of its mass.

/** Nodes at Chebyshev points of ln λ. */
export interface Nodes {
  from: number;
  to: number;
  count: number;
}

const angle = (j: number, count: number): number => (Math.PI * (2 * j + 1)) / (2 * count);

/** λ of every node, rising. */
export function values({ from, to, count }: Nodes): number[] {
  const middle = 0.5 * (Math.log(from) + Math.log(to));
  const half = 0.5 * (Math.log(to) - Math.log(from));
  const value = (_: unknown, j: number) => Math.exp(middle - half * Math.cos(angle(j, count)));
  return Array.from({ length: count }, value).map((l2) => Math.min(Math.max(l2, from), to));
}

/** Barycentric interpolation in ln λ; the coefficients sum to 1. */
export function coefficients(nodes: Nodes, l2: number): number[] {
  const all = values(nodes);
  const hit = all.indexOf(l2);
  if (hit >= 0) {
    return all.map((_, j) => (j === hit ? 1 : 0));
  }
  // Weights of Chebyshev points of the first kind: (−1)^j sin θ_j.
  const terms = all.map((node, j) => ((j % 2 === 0 ? 1 : -1) * Math.sin(angle(j, nodes.count))) / Math.log(l2 / node));
  const total = terms.reduce((sum, term) => sum + term, 0);
  return terms.map((term) => term / total);
}

/** Steps that are alike, and what each takes of λ's mass: 1 − 1/(1 + λ·rate). */
export type Runs = { steps: number; rate: number }[];

/** The mass that is left after all of them. */
export const remaining = (runs: Runs, l2: number): number =>
  Math.exp(-runs.reduce((sum, { steps, rate }) => sum + steps * Math.log1p(l2 * rate), 0));
