"""A gallery of hostile files: each is small, and says what the command must say of it.

    gallery.py BINARY [FOLDER]

Every file is given to the command within limits of memory and time. It must be refused (or read) with the words given, without a panic,
without a word of help from the system (abort, kill, out of memory), within the budget that SECURITY.md states (the most memory it ever had, less
what the same command takes for a small, sound file), and nothing may appear under the output's name. Then what
machines do to a run: few files to open, a full disk, a folder that cannot be written to, several runs at once.
"""
import gzip, io, json, os, pickle, resource, shutil, signal, struct, subprocess, sys, tempfile, time, types, zipfile, zlib
from pathlib import Path

import numpy as np

BINARY = Path(sys.argv[1]).resolve()
MEMORY = 3 << 30  # of addresses: threads' stacks are among them
SECONDS = 60
failed, passed = [], 0
peaks = []
# The most memory that a process ever had counts from its fork: a small one in between starts the command.
STARTER = "import os, sys; child = os.fork() or os.execv(sys.argv[2], sys.argv[2:]); _, status, used = os.wait4(child, 0); \
os.write(int(sys.argv[1]), b'%d' % used.ru_maxrss); sys.exit(os.waitstatus_to_exitcode(status) % 256)"


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(*arguments, cwd=None, before=limited):
    """Exit code, what was said, and seconds. The most memory it had, in bytes, is the last of `peaks`."""
    start, (reader, writer) = time.time(), os.pipe()
    command = [sys.executable, "-I", "-S", "-c", STARTER, str(writer), BINARY, *map(str, arguments)]
    running = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before, pass_fds=[writer], start_new_session=True
    )
    os.close(writer)
    try:
        out, said = running.communicate(timeout=SECONDS)
        code, said = running.returncode, (said + out).decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        code, said = 124, f"still running after {SECONDS} s"
    with os.fdopen(reader, "rb") as pipe:
        peaks.append(1024 * int(pipe.read() or 0))
    return code, said, time.time() - start


def within_budget(name, usual, *paths, packed=False):
    """The last run kept to 64 MB + 8·B more than usual for each of its files; for a packed table, to 64 MB + 8·(64 MB + 64·B)."""
    sizes = [path.stat().st_size for path in paths]
    limit = sum(64_000_000 + 8 * (64_000_000 + 64 * size if packed else size) for size in sizes)
    check(f"{name} within the budget", peaks[-1] - usual <= limit, f"{peaks[-1]} bytes, {usual} of them usual, where {limit} are allowed for {sizes}")


def check(name, condition, said):
    global passed
    if condition:
        passed += 1
    else:
        failed.append(name)
        print(f"FAILED {name}: {said.strip()[:600]}")


def sane(code, said):
    """An error of ours, or success: no panic, no signal, no hang."""
    return code in (0, 1, 2) and "panicked" not in said and "RUST_BACKTRACE" not in said


def refused(name, words, *arguments, cwd=None):
    code, said, _ = run(*arguments, cwd=cwd)
    check(name, sane(code, said) and code != 0 and words in said, f"exit {code}, expected `{words}`: {said}")


# The files.

def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(start, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def npz(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def zipped(entries, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return out.getvalue()


def torch(pickled):
    return zipped([("a/data.pkl", pickled), ("a/data/0", bytes(16)), ("a/version", b"3\n")])


def flipped(data, name):
    """One bit of a stored entry, the checksum left as it was."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        at = archive.getinfo(name).header_offset
    names, extra = struct.unpack("<HH", data[at + 26:at + 30])
    out = bytearray(data)
    out[at + 30 + names + extra + 200] ^= 4
    return bytes(out)


class Runs:
    def __reduce__(self):
        return os.system, ("touch /tmp/afterfit-was-here",)


def npy_header(text):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


good = safetensors({"w": tensor(0, 8, [2])}, struct.pack("<2f", 1, 2))
weights = npz(w=np.arange(40000, dtype=np.float32))
CHECKPOINTS = [
    # name, bytes, what must be said
    ("empty.safetensors", b"", "the file is empty"),
    ("long-header.safetensors", struct.pack("<Q", 1 << 60) + b"{" * 50, "claims a header of 1152921504606846976 bytes"),
    ("deep-header.safetensors", safetensors(b'{"w":' + b"[" * 100000), "not a safetensors file"),
    ("metadata-name.safetensors", safetensors({"__metadata__": tensor(0, 4, [1])}, bytes(4)), "not a safetensors file"),
    ("overlap.safetensors", safetensors({"a": tensor(0, 8, [2]), "b": tensor(4, 12, [2])}, bytes(12)), "nvalid"),
    ("nan.safetensors", safetensors({"w": tensor(0, 8, [2])}, struct.pack("<2f", 1, float("nan"))), "holds NaN at position 1"),
    ("escape.safetensors", safetensors({"\x1b[2J": tensor(0, 8, [2])}, struct.pack("<2f", 1, float("inf"))), "\\x1b[2J"),
    ("zeros.pt", bytes(4096), "it starts with zeros"),
    ("half.npz", weights[: len(weights) // 2], "broken zip archive"),
    ("damaged.npz", flipped(weights, "w.npy"), "entry w.npy is damaged: the checksum of its"),
    ("damaged-pickle.pt", flipped(torch(pickle.dumps({"w": "x" * 500}, 2)), "a/data.pkl"), "entry a/data.pkl: Invalid checksum"),
    ("code.pt", torch(pickle.dumps(Runs(), 2)), "posix"),
    ("bomb.npz", zipped([("w.npy", npy_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (50000000,), }\n") + bytes(200_000_000))], zipfile.ZIP_DEFLATED), "more than the"),
    ("brackets.npz", zipped([("w.npy", npy_header(b"{'descr': " + b"[" * 5000 + b"}\n"))]), "brackets within each other"),
    ("memo.pt", torch(b"\x80\x02" + b"".join(b"Nr" + struct.pack("<I", i) for i in range(1, 400000)) + b"."), ""),
    ("deep.pt", torch(b"\x80\x02" + b"(" * 2_000_000 + b"."), ""),
]


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def shared_groups(group):
    """A model beside an optimizer whose 20 000 groups are one."""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x04tQ"
    one = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00(K\x04t(K\x01t\x89ccollections\nOrderedDict\n)RtR"
    groups = b"}(" + text("lr") + b"G" + struct.pack(">d", 0.1) + group + b"uq\x010"
    optimizer = b"}(" + text("param_groups") + b"](" + b"h\x01" * 20000 + b"e" + text("state") + b"}u"
    return torch(b"\x80\x02" + groups + b"}(" + text("optimizer") + optimizer + text("model") + b"}(" + text("w") + one + b"uu.")


# What may be read or refused, but within the limits.
BOUNDED = [
    ("groups.pt", shared_groups(text("params") + b"](" + b"".join(b"M" + struct.pack("<H", i) for i in range(20000)) + b"e")),
    ("names.pt", shared_groups(text("param_names") + b"](" + text("n" * 20000) + b"q\x02" + b"h\x02" * 5000 + b"e")),
]
TABLES = [
    ("bomb.csv.gz", gzip.compress(b"a,y\n" + b"0,0\n" * 40_000_000, 9), "it unpacks to"),
    ("field.csv.gz", gzip.compress(b"a,y\n" + b"x" * 150_000_000, 9), "it unpacks to"),
    ("texts.csv.gz", gzip.compress(b"".join(b"c%d," % i for i in range(50)) + b"y\n" + b"".join(b"k%d," % i * 50 + b"%d\n" % (i % 2) for i in range(20)) * 5000, 9), "columns of their own"),
    ("quote.csv", b'a,y\n1,"2\n' + b"3,4\n" * 3000, "line 2"),
    ("header.csv", b",".join(b"c%d" % i for i in range(100_000)) + b"\n", ""),
    ("bomb.svm.gz", gzip.compress(b"1 1:1\n" * 30_000_000, 9), "it unpacks to"),
    ("wide.svm", b"1 4294967295:1\n0 1:1\n", ""),
    ("shape.npy", npy_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976, 2), }\n"), "does not fit"),
    ("brackets.npy", npy_header(b"{'descr': " + b"(" * 5000 + b"}\n"), "brackets within each other"),
    ("damaged.npz", flipped(npz(x=np.ones((50, 2)), y=np.ones(50)), "x.npy"), "Invalid checksum"),
    ("images.idx", struct.pack(">4I", 0x803, 1 << 31, 1 << 15, 1 << 15) + bytes(100), ""),
    ("footer.parquet", b"PAR1" + b"\xff" * 100 + struct.pack("<I", 80) + b"PAR1", ""),
]
MODELS = [
    ("empty.dial", b"", ""),
    ("none.dial", good, "not a"),
    ("none.model", good, "not a"),
    ("header.model", safetensors({"__metadata__": {"afterfit": "{" * 10000}}), ""),
]


def usual(folder):
    """The most memory that each command has for something small and sound."""
    folder = folder / "usual"
    folder.mkdir()
    (one, two, table), out = (folder / name for name in ("step_1.safetensors", "step_2.safetensors", "t.csv")), folder / "out.safetensors"
    one.write_bytes(good)
    two.write_bytes(good)
    table.write_bytes(b"a,y\n" + b"1,2\n3,5\n2,3\n" * 20)
    took = {}
    for command in (["average", one, two, "--uniform", "-o", out], ["inspect", one], ["fit", table, "--target", "y", "-o", folder / "m.model"]):
        code, said, _ = run(*command)
        check(f"a usual {command[0]}", code == 0 and peaks[-1] > 0, said)
        took[command[0]] = peaks[-1]
    return took


def gallery(folder):
    out, took = folder / "out.safetensors", usual(folder)
    for name, data, words in CHECKPOINTS:
        path = folder / name
        path.write_bytes(data)
        twin = folder / ("twin-" + name)
        twin.write_bytes(data)
        refused(name, words, "average", path, twin, "--uniform", "-o", out)
        within_budget(name, took["average"], path, twin)
        check(name + " leaves no output", not out.exists(), "there is one")
        code, said, _ = run("inspect", path)
        check(name + " inspected", sane(code, said), said)
        within_budget(name + " inspected", took["inspect"], path)
        path.unlink()
        twin.unlink()
    for name, data in BOUNDED:
        paths = [folder / f"{step}" / name for step in ("step_1", "step_2")]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        for command in (["inspect", paths[0]], ["average", *paths, "--l2", "1", "-o", out, "--dry-run"]):
            code, said, _ = run(*command)
            check(f"{name} {command[0]}", sane(code, said), f"exit {code}: {said}")
            within_budget(f"{name} {command[0]}", took[command[0]], *(paths if command[0] == "average" else paths[:1]))
    check("no code ran", not Path("/tmp/afterfit-was-here").exists(), "it did")
    for name, data, words in TABLES:
        path = folder / name
        path.write_bytes(data)
        target = [] if name.split(".")[1] in ("svm", "npy", "npz", "idx") else ["--target", "y"]
        if name.endswith((".npy", ".idx")):
            target = ["--target", path]
        refused(name, words, "fit", path, *target, "-o", folder / "m.model")
        within_budget(name, took["fit"], path, packed=name.endswith((".gz", ".npz", ".parquet")))
        check(name + " leaves no model", not (folder / "m.model").exists(), "there is one")
        path.unlink()
    for name, data, words in MODELS:
        path = folder / name
        path.write_bytes(data)
        if name.endswith("dial"):
            refused(name, words, "dial", "read", path, "--l2", "0.1", "-o", out)
        else:
            (folder / "t.csv").write_bytes(b"a,y\n1,2\n3,4\n")
            refused(name, words, "predict", path, folder / "t.csv", "-o", folder / "p.csv")
        path.unlink()


# Distributed checkpoints by hand: torch's classes stand in, by their names, for what pickle writes.

def stand_in(module, name, value=None):
    for at in range(1, module.count(".") + 2):
        part = ".".join(module.split(".")[:at])
        sys.modules.setdefault(part, types.ModuleType(part))
    value = value or type(name, (), {})
    value.__module__, value.__qualname__ = module, name
    setattr(sys.modules[module], name, value)
    return value


META = "torch.distributed.checkpoint.metadata"
Metadata, Tensor, Properties, Chunk, Index = (
    stand_in(META, name) for name in ("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex")
)
Stored = stand_in("torch.distributed.checkpoint.filesystem", "_StorageInfo")
Float = stand_in("torch", "float32", type("float32", (), {}))
FLOATS = (  # a tensor of 2 × 2 f32, as torch.save describes it
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"
    b"K\0K\x02K\x02\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)RtR."
)


def made(kind, **fields):
    value = object.__new__(kind)
    value.__dict__.update(fields)
    return value


class Typed(Properties):
    def __reduce__(self):
        return object.__new__, (Properties,), (Float, None, False, None, False)


def distributed_folder(path, chunks, stored, shape=(4, 2), paths=None):
    """`chunks`: offsets and sizes; `stored`: by offset, what to change of the place."""
    path.mkdir()
    archive = torch(FLOATS)
    listed = made(Tensor, properties=made(Typed), size=shape, chunks=[made(Chunk, offsets=at, sizes=sizes) for at, sizes in chunks])
    data = {}
    for n, (at, change) in enumerate(stored.items()):
        place = {"relative_path": "__0_0.distcp", "offset": n * len(archive), "length": len(archive)} | change
        data[made(Index, fqn="w", offset=at, index=n)] = made(Stored, **place)
    whole = made(Metadata, state_dict_metadata={"w": listed}, planner_data=paths or {"w": ("w",)}, storage_data=data)
    (path / ".metadata").write_bytes(pickle.dumps(whole, 4))
    (path / "__0_0.distcp").write_bytes(archive * len(stored))
    return path


def distributed(folder):
    rows, both = [((0, 0), (2, 2)), ((2, 0), (2, 2))], {(0, 0): {}, (2, 0): {}}
    far = {(0, 0): {}, (2, 0): {"offset": 1 << 62}}
    cases = [
        ("whole", "", rows, both, {}),
        ("overlap", "another one has, too", [rows[0], ((1, 0), (2, 2))], {(0, 0): {}, (1, 0): {}}, {}),
        ("hole", "4 of its 8 elements", rows[:1], both, {}),
        ("no-file", "is in no file", rows, {(0, 0): {}}, {}),
        ("huge", "not inside", [((0, 0), (2, 2)), ((1 << 62, 0), (2, 2))], {(0, 0): {}, (1 << 62, 0): {}}, {}),
        ("uncountable", "", rows, both, {"shape": (1 << 40, 1 << 40)}),
        ("many", "chunks are listed", rows[:1] * 5000, both, {}),
        ("far", "are beyond its", rows, far, {}),
        ("outside", "is not a file beside .metadata: refused", rows, {(0, 0): {"relative_path": "/etc/passwd"}, (2, 0): {}}, {}),
        ("up", "is not a file beside .metadata: refused", rows, {(0, 0): {"relative_path": "../x"}, (2, 0): {}}, {}),
        ("missing", "is missing", rows, {(0, 0): {"relative_path": "__1_0.distcp"}, (2, 0): {}}, {}),
        ("zstd", "stream.zstd", rows, {(0, 0): {"transform_descriptors": ["stream.zstd"]}, (2, 0): {}}, {}),
        ("short", "broken zip archive", rows, {(0, 0): {"length": 100}, (2, 0): {}}, {}),
        ("deep", "", rows, both, {"paths": {"w": ("a",) * 100_000}}),
    ]
    twin = distributed_folder(folder / "twin", rows, both)
    for name, words, chunks, stored, more in cases:
        path, out = distributed_folder(folder / name, chunks, stored, **more), folder / "out"
        if name in ("whole", "deep"):
            code, said, _ = run("average", path, twin, "--uniform", "-o", out)
            check("distributed " + name, sane(code, said) and code == 0, said)
            shutil.rmtree(out, ignore_errors=True)
        else:
            refused("distributed " + name, words, "average", path, twin, "--uniform", "-o", out)
            check(f"distributed {name} leaves no output", not out.exists(), "there is one")
        code, said, _ = run("inspect", path)
        check(f"distributed {name} inspected", sane(code, said), said)
    (folder / "twin" / ".metadata").write_bytes(pickle.dumps(Runs(), 2))
    refused("distributed code", "posix", "inspect", folder / "twin")
    check("no code ran", not Path("/tmp/afterfit-was-here").exists(), "it did")


def edited_dial(folder):
    """A dial whose rates were edited afterwards."""
    for step in (0, 10, 20, 30):
        (folder / f"step-{step}.safetensors").write_bytes(safetensors({"w": tensor(0, 8, [2])}, struct.pack("<2f", step, 1)))
    steps = sorted(folder.glob("step-*.safetensors"))
    dial = folder / "run.dial"
    code, said, _ = run("average", *steps, "--dial", "1e-3..1:8", "--rate", "0.1", "-o", dial)
    check("a dial is made", code == 0, said)
    if code:
        return
    whole = dial.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:8 + length])
    edited, out = folder / "edited.dial", folder / "read.safetensors"

    def edit(name, first, careful=True):
        """Another first number in a tensor; with its checksum, if careful."""
        start, end = (8 + length + at for at in header[name]["data_offsets"])
        data = bytearray(whole)
        data[start:start + 8] = struct.pack("<d", first)
        if careful:
            about = json.loads(header["__metadata__"]["afterfit"])
            about["checksums"][name] = zlib.crc32(data[start:end])
            changed = json.dumps(header | {"__metadata__": {"afterfit": json.dumps(about)}}, separators=(",", ":")).encode()
            data = bytearray(struct.pack("<Q", len(changed)) + changed + data[8 + length:])
        edited.write_bytes(data)

    for name in [name for name in header if name != "__metadata__"]:
        edit(name, 0.3, careful=False)
        refused(f"one number of {name}", f"entry {name} is damaged", "dial", "read", edited, "--l2", "0.1", "-o", out)
    edit("rates/0", 0.2)
    refused("edited.dial", "the dial's masses are not those of its rates", "dial", "read", edited, "--l2", "0.1", "-o", out)
    # Steps in the billions are a number in a file, and refused as one.
    edit("rate_steps/0", 5e9)
    refused("billions.dial", "30 steps", "dial", "read", edited, "--l2", "0.1", "-o", out)


def machines(folder):
    for step in range(100):
        values = np.full(1000, step, np.float32)
        (folder / f"step-{step}.safetensors").write_bytes(safetensors({"w": tensor(0, 4000, [1000])}, values.tobytes()))
    steps = sorted(folder.glob("step-*.safetensors"))

    def few():
        limited()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    out = folder / "few.safetensors"
    code, said, _ = run("average", *steps, "--uniform", "-o", out, before=few)
    check("100 files within 64 descriptors", code == 0 and out.exists(), said)

    # Several at once, into one name: one of them wins, whole; the others say why not.
    out = folder / "one.safetensors"
    command = [BINARY, "average", *steps, "--uniform", "-o", out]
    several = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(6)]
    codes = [(process.communicate(timeout=SECONDS)[1], process.returncode) for process in several]
    check("one of several wins", sorted(code for _, code in codes)[0] == 0 and all(sane(code, said.decode()) for said, code in codes), str(codes))
    check("and is whole", out.read_bytes() == (folder / "few.safetensors").read_bytes()[: out.stat().st_size] or out.stat().st_size > 4000, "it is not")
    check("nothing else is left", not list(folder.glob(".afterfit-*")), str(list(folder.glob(".afterfit-*"))))

    if os.geteuid() == 0 and shutil.which("mount"):
        small = folder / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True).returncode == 0:
            try:
                big = folder / "big.safetensors"
                big.write_bytes(safetensors({"w": tensor(0, 400000, [100000])}, bytes(400000)))
                twin = folder / "twin.safetensors"
                twin.write_bytes(big.read_bytes())
                refused("a full disk", "No space left", "average", big, twin, "--uniform", "-o", small / "out.safetensors")
                check("a full disk is left empty", not list(small.iterdir()), str(list(small.iterdir())))
            finally:
                subprocess.run(["umount", small], check=False)
        else:
            print("SKIPPED a full disk: this machine lets nobody mount a tmpfs")
    else:
        print("SKIPPED a full disk: it needs root")


def main():
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="afterfit-hostile-"))
    try:
        for part in (gallery, distributed, edited_dial, machines):
            place = folder / part.__name__
            place.mkdir(parents=True)
            part(place)
    finally:
        if len(sys.argv) <= 2:
            shutil.rmtree(folder)
    print(f"{passed} checks passed, {len(failed)} failed")
    sys.exit(bool(failed))


main()
