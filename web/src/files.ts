// What can be taken away: the model as a file, a chart as a picture, the table.

import { zipSync } from "fflate";

import type { Row } from "./data";
import type { Model, Path } from "./model";

type Shape = [number, number] | [number];

const ascii = (text: string): Uint8Array => new TextEncoder().encode(text);

function joined(parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

const raw = (numbers: Float64Array): Uint8Array => new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength);

type Size = Pick<Path, "outputs" | "features">;

const tensors = ({ outputs, features }: Size, model: Model): [string, Shape, Float64Array][] => [
  ["bias", [outputs], model.bias],
  ["weight", [outputs, features], model.weights],
];

/** The file that `afterfit predict` and any reader of safetensors load; `about` is what the path's own file says of itself. */
export function safetensors(about: Record<string, unknown>, size: Size, model: Model, resolved: boolean): Uint8Array<ArrayBuffer> {
  const own = { ...about, l2: model.l2, path: null, chosen: null, certificate: null, resolved };
  const header: Record<string, unknown> = { __metadata__: { afterfit: JSON.stringify(own) } };
  let offset = 0;
  const all = tensors(size, model);
  for (const [name, shape, numbers] of all) {
    header[name] = { dtype: "F64", shape, data_offsets: [offset, offset + numbers.byteLength] };
    offset += numbers.byteLength;
  }
  let text = JSON.stringify(header);
  text += " ".repeat((8 - (ascii(text).length % 8)) % 8);
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(ascii(text).length), true);
  return joined([length, ascii(text), ...all.map(([, , numbers]) => raw(numbers))]);
}

/** The same as numpy arrays, the strength among them. */
export function npz(size: Size, model: Model): Uint8Array<ArrayBuffer> {
  const npy = (shape: number[], numbers: Float64Array): Uint8Array => {
    const tuple = shape.length === 1 ? `(${shape[0]!},)` : `(${shape.join(", ")})`;
    const text = `{'descr': '<f8', 'fortran_order': False, 'shape': ${tuple}, }`;
    const padded = text + " ".repeat(63 - ((text.length + 10) % 64)) + "\n";
    const length = Uint8Array.of(padded.length & 255, padded.length >> 8);
    return joined([Uint8Array.of(0x93), ascii("NUMPY"), Uint8Array.of(1, 0), length, ascii(padded), raw(numbers)]);
  };
  const files: Record<string, Uint8Array> = { "l2.npy": npy([1], Float64Array.of(model.l2)) };
  for (const [name, shape, numbers] of tensors(size, model)) {
    files[`${name}.npy`] = npy(shape, numbers);
  }
  const zipped = zipSync(files, { level: 0, mtime: new Date(1980, 0, 1) });
  return joined([zipped]);
}

/** Every judged strength. (Names and numbers of ours: nothing in it needs quotes.) */
export function csv(rows: Row[]): string {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))] as (keyof Row)[];
  const line = (row: Row): string => names.map((name) => String(row[name] ?? "")).join(",");
  return [names.join(","), ...rows.map(line)].join("\n") + "\n";
}

export function save(name: string, content: BlobPart, type: string): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => {
    URL.revokeObjectURL(url);
  }, 10_000);
}

/** A chart as a file of its own, on white paper. */
export function svgText(svg: SVGSVGElement, style: string): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const look = document.createElementNS("http://www.w3.org/2000/svg", "style");
  look.textContent = `svg{color:#222;background:#fff;font:10px system-ui,sans-serif;overflow:visible}${style}`;
  copy.prepend(look);
  return new XMLSerializer().serializeToString(copy);
}

export async function png(svg: SVGSVGElement, style: string): Promise<Blob> {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg, style))}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * svg.width.baseVal.value;
  canvas.height = 2 * svg.height.baseVal.value;
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => {
      if (blob) resolve(blob);
      else reject(new Error("the picture could not be made"));
    });
  });
}
