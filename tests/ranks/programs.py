"""What the scripts that run plans as real processes share."""
import json, struct, subprocess


def run(*argv, cwd):
    """The standard output of a command that must succeed."""
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def tensors(path):
    """{name: (dtype, bytes)} of a safetensors file."""
    with open(path, "rb") as file:
        n = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(n))
        body = file.read()
    header.pop("__metadata__", None)
    return {name: (item["dtype"], body[slice(*item["data_offsets"])]) for name, item in header.items()}


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)
