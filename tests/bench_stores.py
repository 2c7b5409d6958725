"""Object stores beside plain ranged reads of the same bytes, in turns in one run; writes docs/stores.md's part and docs/scale.json.

Run by `make bench-scale` as `python tests/bench_stores.py PATH_TO_AFTERFIT`. The store is a server of its own process that answers ranged requests from
memory; the peer is what `aws s3 cp` does, ranged requests of 8 MB, ten at a time, and nothing else. Needs torch's environment.
"""

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

ROOT = Path(__file__).parent.parent
BLOCK = 8 << 20
COUNT, MEGABYTES, STRENGTHS = 12, 96, 4

# Listings as S3's, objects from memory: a test server's own cost must not be what is measured.
SERVER = r"""
import re, socketserver, sys, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
objects = {"run/" + path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir()}
class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
    def do_HEAD(self):
        self.do_GET()
    def do_GET(self):
        path, _, query = self.path.partition("?")
        key = urllib.parse.unquote(path).removeprefix("/bucket").lstrip("/")
        if not key:
            prefix = urllib.parse.parse_qs(query).get("prefix", [""])[0]
            found = "".join(f"<Contents><Key>{k}</Key><LastModified>2026-11-19T00:00:00.000Z</LastModified><ETag>&quot;{len(v)}&quot;</ETag><Size>{len(v)}</Size></Contents>" for k, v in sorted(objects.items()) if k.startswith(prefix))
            return self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode(), Content_Type="application/xml")
        if key not in objects:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        whole, asked = memoryview(objects[key]), re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        first, last = (int(asked[1]), min(int(asked[2]), len(whole) - 1)) if asked else (0, len(whole) - 1)
        more = {"Content_Range": f"bytes {first}-{last}/{len(whole)}"} if asked else {}
        self.answer(206 if asked else 200, whole[first : last + 1], ETag=f'"{len(whole)}"', Last_Modified="Thu, 19 Nov 2026 00:00:00 GMT", **more)
    def log_message(self, *_):
        pass
ThreadingHTTPServer.request_queue_size = 128
server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
print(server.server_port, flush=True)
server.serve_forever()
"""


def plain(port, files):
    """Every byte by ranged requests, ten at a time."""
    ranges = [(name, at, min(at + BLOCK, size) - 1) for name, size in files for at in range(0, size, BLOCK)]

    def work(part):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        buffer = bytearray(BLOCK)
        for name, first, last in part:
            connection.request("GET", f"/bucket/run/{name}", headers={"Range": f"bytes={first}-{last}"})
            answer, done = connection.getresponse(), 0
            while done < last - first + 1:
                done += answer.readinto(memoryview(buffer)[done:])

    start = time.perf_counter()
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(work, [ranges[at::10] for at in range(10)]))
    return time.perf_counter() - start


def used(command, **variables):
    """Seconds, seconds of the processor, and the peak."""
    watch = "import json, resource, subprocess, sys, time; s = time.perf_counter(); subprocess.run(sys.argv[1:], check=True, stdout=2); t = time.perf_counter() - s; u = resource.getrusage(resource.RUSAGE_CHILDREN); print(json.dumps([t, u.ru_utime + u.ru_stime, u.ru_maxrss / 1e3]))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", watch, *map(str, command)], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def main():
    binary = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "run").mkdir()
        generator = np.random.default_rng(0)
        for step in range(COUNT):
            tensors = {f"layer.{at}": generator.standard_normal((MEGABYTES // 8, 1 << 18), np.float32)[: MEGABYTES // 8] for at in range(8)}
            save_file({name: value.reshape(-1)[: MEGABYTES * (1 << 15)] for name, value in tensors.items()}, folder / "run" / f"step-{step}.safetensors")
        files = [(path.name, path.stat().st_size) for path in sorted((folder / "run").iterdir())]
        total = sum(size for _, size in files)
        server = subprocess.Popen([sys.executable, "-c", SERVER, folder / "run"], stdout=subprocess.PIPE, text=True)
        port = int(server.stdout.readline())
        variables = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "r"}
        ratios = ",".join(str(0.9 - 0.1 * at) for at in range(STRENGTHS))
        rows = {"plain": [], "store": [], "disk": []}
        try:
            for turn in range(5):
                rows["plain"].append([plain(port, files), 0, 0])
                for kind, source in [("store", "s3://bucket/run"), ("disk", folder / "run")]:
                    rows[kind].append(used([binary, "average", source, "-o", folder / f"{kind}-{turn}", "--ratio", ratios, "-q"], **variables))
        finally:
            server.kill()
    middle = {kind: [statistics.median(column) for column in zip(*found)] for kind, found in rows.items()}
    (plain_s, *_), (store_s, store_cpu, peak), (_, disk_cpu, _) = (middle[kind] for kind in ("plain", "store", "disk"))
    text = f"""{COUNT} checkpoints, {total / 1e9:.2f} GB in all, {STRENGTHS} averages, from a server on loopback without TLS, {os.cpu_count()} threads for both of them, medians of five:

| | seconds | MB/s | |
|---|---|---|---|
| `afterfit average s3://…`, everything | {store_s:.2f} | {total / store_s / 1e6:.0f} | **{store_s / plain_s:.2f}×** the time of plain reads; {peak:.0f} MB |
| plain ranged reads of the same bytes, 8 MB each, ten at a time | {plain_s:.2f} | {total / plain_s / 1e6:.0f} | |

The client takes {1e9 * (store_cpu - disk_cpu) / total:.2f} s of a core for a GB beyond what the same averages take from a disk. TLS is not in it."""
    page = ROOT / "docs" / "stores.md"
    page.write_text(re.sub(r"(<!-- tests/bench_stores.py -->\n).*?(<!-- end -->)", lambda found: f"{found[1]}{text}\n{found[2]}", page.read_text(), flags=re.DOTALL))
    print(text)
    place = ROOT / "docs" / "scale.json"
    known = json.loads(place.read_text()) if place.exists() else {}
    known["store"] = {"ratio": store_s / plain_s, "cpu_seconds_a_gb": 1e9 * (store_cpu - disk_cpu) / total, "peak_mb": peak, "checkpoints": COUNT}
    place.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
