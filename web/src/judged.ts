// The strengths that something is known of, rising, whatever order they were asked in.

import type { PageData, Row } from "./data";

export type Numbers = Exclude<keyof Row, "resolved" | "standing">;

export class Judged {
  rows: Row[] = [];
  best: Row | null = null;
  oneSe: Row | null = null;
  /** Where in the page's own list each row is. */
  private places: number[] = [];

  constructor(data: Pick<PageData, "rows" | "best" | "one_se">) {
    this.renew(data);
  }

  renew(data: Pick<PageData, "rows" | "best" | "one_se">): void {
    this.places = data.rows.map((_, at) => at).sort((a, b) => data.rows[a]!.l2 - data.rows[b]!.l2);
    this.rows = this.places.map((at) => data.rows[at]!);
    const row = (at: number | null) => (at === null ? null : (data.rows[at] ?? null));
    [this.best, this.oneSe] = [row(data.best), row(data.one_se)];
  }

  get range(): [number, number] {
    return [this.rows[0]!.l2, this.rows[this.rows.length - 1]!.l2];
  }

  /** The row next to a strength, and its number in the page's own list. */
  nearest(l2: number): { row: Row; place: number } {
    let near = 0;
    this.rows.forEach((row, at) => {
      if (Math.abs(Math.log(row.l2 / l2)) < Math.abs(Math.log(this.rows[near]!.l2 / l2))) near = at;
    });
    return { row: this.rows[near]!, place: this.places[near]! };
  }

  /** Whether any row has this number. */
  has(of: Numbers): boolean {
    return this.rows.some((row) => typeof row[of] === "number");
  }

  with(of: Numbers): Row[] {
    return this.rows.filter((row) => typeof row[of] === "number");
  }

  /** A number at a strength, or between the two next to it that have it. */
  at(l2: number, of: Numbers): number | null {
    const rows = this.with(of);
    const next = rows.findIndex((row) => row.l2 >= l2);
    const [after, before] = [rows[next], rows[next - 1]];
    if (after?.l2 === l2) return after[of]!;
    if (!after || !before) return null;
    const share = Math.log(l2 / before.l2) / Math.log(after.l2 / before.l2);
    return before[of]! + share * (after[of]! - before[of]!);
  }
}
