// A page whose server evaluates the strengths that are asked for, one after the other.

import type { PageData } from "./data";
import { short } from "./dom";
import type { View } from "./view";

/** What the server knows: all it has measured, and what it is at. */
interface Known extends Pick<PageData, "rows" | "best" | "one_se"> {
  evaluating: number | null;
  waiting: number;
  /** Why the last evaluation gave no score. */
  failure: string | null;
}

/** How long a strength must stay before it is asked for, and how often to look. */
const SETTLED = 500;
const LOOK = 700;

async function ask(l2?: number): Promise<Known> {
  const answer = l2 === undefined
    ? await fetch("known")
    : await fetch("evaluate", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ l2 }) });
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return (await answer.json()) as Known;
}

/** A reading of the dial itself, as a file. */
export async function readModel(l2: number, format: "safetensors" | "npz"): Promise<Blob> {
  const answer = await fetch(`model?l2=${String(l2)}&format=${format}`);
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.blob();
}

export class Live {
  private view: View | null = null;
  private asking = 0;
  private looking = 0;
  private shown = "";

  /** Takes over a page. */
  follow(view: View): void {
    this.view = view;
    this.look();
  }

  /** The strength at hand is another one. */
  moved(l2: number): void {
    // (Where the page begins is nobody's wish.)
    if (!this.view) return;
    window.clearTimeout(this.asking);
    this.asking = window.setTimeout(() => {
      this.show(ask(l2));
    }, SETTLED);
  }

  private look(): void {
    this.show(ask());
  }

  private show(asked: Promise<Known>): void {
    asked.then(
      (known) => {
        const text = JSON.stringify(known);
        if (text !== this.shown) {
          this.shown = text;
          this.view?.renew(known);
        }
        const busy = known.evaluating !== null || known.waiting > 0;
        const more = known.waiting > 0 ? `, ${known.waiting} waiting` : "";
        if (busy) this.view?.say(`evaluating λ ${short(known.evaluating)}${more} …`);
        else this.view?.say(known.failure ?? "");
        window.clearTimeout(this.looking);
        if (busy) this.looking = window.setTimeout(() => { this.look(); }, LOOK);
      },
      (error: unknown) => {
        this.view?.say(`the server does not answer: ${error instanceof Error ? error.message : String(error)}`);
      },
    );
  }
}
