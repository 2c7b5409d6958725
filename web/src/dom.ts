// Elements without a framework. Text is always text: nothing here parses HTML.

type Child = Node | string | null;
type Props = Record<string, string | number | boolean | null>;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function button(text: string, act: () => void, label?: string): HTMLButtonElement {
  const made = element("button", { type: "button", "aria-label": label ?? null }, text);
  made.addEventListener("click", act);
  return made;
}

/** A number as people write it: four digits, an exponent where it is far from 1. */
export function short(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e5) {
    return value.toExponential(digits - 2).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  return String(Number(value.toPrecision(digits)));
}
