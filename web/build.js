// Bundles the page into the files that the command carries. The same sources give the same bytes.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const outdir = process.argv[2] ?? "../crates/afterfit-cli/src/page";

await build({
  entryPoints: [
    { in: "src/main.ts", out: "page" },
    { in: "src/style.css", out: "page" },
  ],
  outdir,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "eof",
  logLevel: "warning",
});

// What browsers let a page do: run this program in these looks, show pictures of its own making, nothing else.
const hash = (name) => `'sha256-${createHash("sha256").update(readFileSync(`${outdir}/${name}`)).digest("base64")}'`;
const policy = [
  "default-src 'none'",
  `script-src ${hash("page.js")}`,
  `style-src ${hash("page.css")}`,
  "img-src data: blob:",
  "base-uri 'none'",
  "form-action 'none'",
];
writeFileSync(`${outdir}/policy.txt`, `${policy.join("; ")};\n`);
