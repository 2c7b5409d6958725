// Where the page comes to life: in a report, or in a notebook's cell.

import type { PageData } from "./data";
import { element } from "./dom";
import { Live } from "./live";
import { view } from "./view";

/** The part of a notebook's model that is used here (anywidget). */
interface Traits {
  get: (name: string) => unknown;
  set: (name: string, value: unknown) => void;
  on: (event: string, act: () => void) => void;
  off: (event: string, act: () => void) => void;
  save_changes: () => void;
}

function render({ model, el }: { model: Traits; el: HTMLElement }): () => void {
  const data = JSON.parse(model.get("page") as string) as PageData;
  let sent = model.get("l2") as number;
  const shown = view(data, (l2) => {
    if (l2 !== sent) {
      sent = l2;
      model.set("l2", l2);
      model.save_changes();
    }
  }, sent);
  const follow = () => {
    const l2 = model.get("l2") as number;
    if (l2 !== sent) {
      sent = l2;
      shown.set(l2);
    }
  };
  model.on("change:l2", follow);
  el.append(shown.node);
  return () => {
    model.off("change:l2", follow);
  };
}

/** Milliseconds without a move, after which the address has the strength. */
const RESTS = 150;

/** The strength that the address asks for. */
function asked(): number | undefined {
  const l2 = Number(new URLSearchParams(location.hash.slice(1)).get("l2"));
  return l2 > 0 ? l2 : undefined;
}

function report(): void {
  const source = document.getElementById("afterfit-data");
  if (!source?.textContent) return;
  const data = JSON.parse(source.textContent) as PageData;
  const live = data.live ? new Live() : null;
  let writing = 0;
  const shown = view(data, (l2) => {
    // (Browsers count how often an address changes, and it costs part of a frame: it follows when the slider rests.)
    window.clearTimeout(writing);
    writing = window.setTimeout(() => { history.replaceState(null, "", `#l2=${String(l2)}`); }, RESTS);
    live?.moved(l2);
  }, asked());
  window.addEventListener("hashchange", () => {
    const l2 = asked();
    if (l2 !== undefined && l2 !== shown.l2()) shown.set(l2);
  });
  document.body.replaceChildren(element("main", {}, shown.node));
  live?.follow(shown);
}

report();

export default { render };
