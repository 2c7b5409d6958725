"""Runs every fuzz target for some seconds and adds what it really executed to counts.json, of which README.md has a table.

    run.py SECONDS [TARGET ...]

Limits are the budget's: inputs of at most 64 kB may take 64 MB + 8 times that (packed tables 64 MB + 8 times what they may unpack to), the
fuzzer's own memory apart, and 20 s.
"""
import json, os, re, subprocess, sys
from pathlib import Path

HERE = Path(__file__).parent
BUDGET_MB = 64 + 1  # of the readers
UNPACKED_MB = 64 + 8 * (64 + 4)  # of those of packed tables
PACKED = {"csv_gz", "parquet", "table_npz"}
FUZZER_MB = 100  # libFuzzer with its corpus, the program, threads' stacks: some 30 after half a minute, more with the corpus of hours


def run(target, seconds):
    """Executions, features covered, and how it ended."""
    binary = HERE / "target/x86_64-unknown-linux-gnu/release" / target
    found, corpus = HERE / "artifacts" / target, HERE / "target/corpus" / target
    for folder in (found, corpus):
        folder.mkdir(parents=True, exist_ok=True)
    command = [binary, corpus, HERE / "corpus" / target, f"-artifact_prefix={found}/", f"-max_total_time={seconds}", "-max_len=65536"]
    command += ["-timeout=20", f"-rss_limit_mb={FUZZER_MB + (UNPACKED_MB if target in PACKED else BUDGET_MB)}", "-print_final_stats=1"]
    env = dict(os.environ, TMPDIR="/dev/shm" if Path("/dev/shm").is_dir() else "/tmp")
    done = subprocess.run(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env)
    said = done.stderr.decode(errors="replace")
    number = lambda pattern: int((re.findall(pattern, said) or ["0"])[-1])
    executed = number(r"stat::number_of_executed_units: (\d+)") or number(r"#(\d+)")
    if done.returncode:
        print(said[-3000:], file=sys.stderr)
    return executed, number(r"ft: (\d+)"), number(r"stat::peak_rss_mb: +(\d+)"), done.returncode


def main():
    seconds = int(sys.argv[1])
    targets = sys.argv[2:] or sorted(path.stem for path in (HERE / "fuzz_targets").glob("*.rs"))
    file = HERE / "counts.json"
    counts = json.loads(file.read_text()) if file.exists() else {}
    failed = []
    for target in targets:
        executed, features, peak, code = run(target, seconds)
        before = counts.get(target, {"executions": 0, "seconds": 0})
        counts[target] = {
            "executions": before["executions"] + executed,
            "seconds": before["seconds"] + seconds,
            "features": features,
            "peak_rss_mb": peak,
        }
        print(f"{target}: {executed} executions, {features} features, {peak} MB" + (f", exit {code}" if code else ""), flush=True)
        failed += [target] * bool(code)
        file.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
        readme(counts)
    sys.exit(f"failed: {failed}" if failed else 0)


def readme(counts):
    rows = [f"| `{name}` | {c['executions']:,} | {c['seconds']} | {c['features']} | {c['peak_rss_mb']} |" for name, c in sorted(counts.items())]
    total = sum(c["executions"] for c in counts.values())
    table = ["| target | executions | seconds | features | peak MB |", "|---|--:|--:|--:|--:|", *rows, f"| together | {total:,} | | | |"]
    path = HERE / "README.md"
    text = path.read_text()
    start, end = "<!-- counted by run.py -->\n", "<!-- end of the count -->"
    before, rest = text.split(start)
    path.write_text(before + start + "\n".join(table) + "\n" + end + rest.split(end)[1])


main()
