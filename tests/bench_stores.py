"""Object stores beside plain ranged reads of the same bytes, in turns in one run; writes docs/stores.md's part and docs/scale.json.

Run by `make bench-scale` as `python tests/bench_stores.py PATH_TO_AFTERFIT`. The store is a server of its own process that answers ranged requests from
memory, as fast as a line and each of its connections let it, or without such limits. The peer is what `aws s3 cp` does: ranged requests of 8 MB, whose bytes
are stored. Needs torch's environment.
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
# In MB/s: all connections together, each of them (what S3 gives one); in seconds: until an answer begins.
LINES, EACH, LATENCY = (625, 1250), 90, 0.01
TURNS = 5

# Listings as S3's, objects from memory: a test server's own cost must not be what is measured.
SERVER = r"""
import re, sys, threading, time, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
objects = {"run/" + path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir()}
line, each, latency = map(float, sys.argv[2:])
# Lets so many bytes a second pass.
class Bucket:
    def __init__(self, rate):
        self.rate, self.until, self.lock = rate, 0.0, threading.Lock()
    def passes(self, count):
        # When so many bytes have passed. (What was not used is lost, but for some milliseconds: sleepers wake late.)
        with self.lock:
            self.until = max(self.until, time.monotonic() - 0.005) + count / self.rate
            return self.until
LINE = Bucket(line)
PIECE = 1 << 18
class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def setup(self):
        super().setup()
        self.own = Bucket(each)
    def write(self, body):
        if not line:
            return self.wfile.write(body)
        for at in range(0, len(body), PIECE):
            piece = body[at : at + PIECE]
            time.sleep(max(0, max(LINE.passes(len(piece)), self.own.passes(len(piece))) - time.monotonic()))
            self.wfile.write(piece)
    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.write(body)
    def do_HEAD(self):
        self.do_GET()
    def do_GET(self):
        time.sleep(latency)
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


def plain(port, files, at_once, folder=None):
    """Seconds for every byte by ranged requests; stored in a folder, or forgotten."""
    ranges = [(name, at, min(at + BLOCK, size) - 1) for name, size in files for at in range(0, size, BLOCK)]

    def work(part):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        buffer = bytearray(BLOCK)
        for name, first, last in part:
            connection.request("GET", f"/bucket/run/{name}", headers={"Range": f"bytes={first}-{last}"})
            answer, done, wanted = connection.getresponse(), 0, last - first + 1
            while done < wanted:
                done += answer.readinto(memoryview(buffer)[done:wanted])
            if folder:
                file = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
                os.pwrite(file, memoryview(buffer)[:wanted], first)
                os.close(file)

    start = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(work, [ranges[at::at_once] for at in range(at_once)]))
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
        ratios = ",".join(str(0.9 - 0.1 * at) for at in range(STRENGTHS))

        def measure(line, at_once, stores):
            """Medians of both sides (and of the disk, where there is no line), each of seconds, seconds of the processor, and the peak."""
            pace = [line * 1e6, EACH * 1e6, LATENCY if line else 0]
            server = subprocess.Popen([sys.executable, "-c", SERVER, folder / "run", *map(str, pace)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            port = int(server.stdout.readline())
            variables = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "r"}
            rows, sources = {"plain": []}, {"store": "s3://bucket/run", **({} if line else {"disk": folder / "run"})}
            try:
                for _ in range(TURNS):
                    with tempfile.TemporaryDirectory(dir=folder) as out:
                        rows["plain"].append([plain(port, files, at_once, Path(out) if stores else None), 0, 0])
                    for kind, source in sources.items():
                        with tempfile.TemporaryDirectory(dir=folder) as out:
                            found = used([binary, "average", source, "-o", f"{out}/averages", "--ratio", ratios, "-q"], **variables)
                            rows.setdefault(kind, []).append(found)
            finally:
                server.kill()
                server.wait()
            return {kind: [statistics.median(column) for column in zip(*found)] for kind, found in rows.items()}

        # (Without a line ten requests at a time, as `aws s3 cp` has; as many as it takes where connections are slow.)
        loopback = measure(0, 10, False)
        paced = {line: measure(line, 20, True) for line in LINES}
    store_s, store_cpu, peak = loopback["store"]
    plain_s, disk_cpu = loopback["plain"][0], loopback["disk"][1]
    extra = 1e9 * (store_cpu - disk_cpu) / total
    lines = "\n".join(
        f"| {line * 8 / 1000:g} Gbit/s | {row['plain'][0]:.2f} s, {total / row['plain'][0] / 1e6:.0f} MB/s | {row['store'][0]:.2f} s, {total / row['store'][0] / 1e6:.0f} MB/s "
        f"| **{row['store'][0] / row['plain'][0]:.2f}×** | {row['store'][2]:.0f} MB |"
        for line, row in paced.items()
    )
    text = f"""{COUNT} checkpoints, {total / 1e9:.2f} GB in all, {STRENGTHS} averages written to a disk, from a server on loopback without TLS, {os.cpu_count()} threads for server and client, in
turns, medians of {TURNS}. The server lets all connections together have the line's speed and each of them {EACH} MB/s, about what S3 gives one, and begins each answer
after {1000 * LATENCY:.0f} ms. Beside it plain ranged reads of the same bytes, 8 MB each, twenty at a time, stored on the disk as `aws s3 cp` does:

| line | plain reads | `afterfit average s3://…`, everything | | peak |
|---|---|---|---|---|
{lines}

Without a line, both sides and the server share {os.cpu_count()} cores, and what is compared is work per byte. Plain reads that are stored nowhere, ten at a time, take {plain_s:.2f} s
({total / plain_s / 1e6:.0f} MB/s); `average` takes {store_s:.2f} s ({total / store_s / 1e6:.0f} MB/s, {store_s / plain_s:.1f}×). Its client takes {extra:.2f} s of a core for a GB beyond what the same averages
take from a disk. TLS is not in it."""
    page = ROOT / "docs" / "stores.md"
    page.write_text(re.sub(r"(<!-- tests/bench_stores.py -->\n).*?(<!-- end -->)", lambda found: f"{found[1]}{text}\n{found[2]}", page.read_text(), flags=re.DOTALL))
    print(text)
    place = ROOT / "docs" / "scale.json"
    known = json.loads(place.read_text()) if place.exists() else {}
    known["store"] = {"ratio": store_s / plain_s, "cpu_seconds_a_gb": extra, "peak_mb": peak, "checkpoints": COUNT}
    place.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
