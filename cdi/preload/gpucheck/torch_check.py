"""Whether PyTorch is held to its quota, by each way in which it allocates.

Run under the preload library with a share of QUOTA_MIB; each check runs in a process of its own, since PyTorch chooses
its allocator once. Prints "pass NAME" or "fail NAME: why" and exits 1 if any failed.
"""

import os
import subprocess
import sys

MIB = 1 << 20
QUOTA = int(os.environ["QUOTA_MIB"]) * MIB


def fill(torch, step):
    """Allocates until it is refused; returns the bytes that were had."""
    kept, total = [], 0
    while True:
        try:
            kept.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            return total
        total += step
        if total > 2 * QUOTA:
            raise AssertionError(f"{total // MIB} MiB were given, of {QUOTA // MIB}")


def held(torch):
    free, total = torch.cuda.mem_get_info()
    assert total == QUOTA, f"total is {total // MIB} MiB"
    got = fill(torch, 64 * MIB)
    assert got <= QUOTA, f"{got // MIB} MiB were given"
    assert got >= free - 256 * MIB, f"{got // MIB} MiB were given, {free // MIB} were shown free"


def native(torch):
    held(torch)


def expandable(torch):
    held(torch)


def stream_ordered(torch):
    held(torch)


def small(torch):
    kept, total = [], 0
    try:
        while total <= 2 * QUOTA:
            kept.append(torch.empty(1 * MIB, dtype=torch.uint8, device="cuda"))
            total += MIB
    except torch.cuda.OutOfMemoryError:
        pass
    assert total <= QUOTA, f"{total // MIB} MiB were given"


def graph(torch):
    a = torch.randn(512, 512, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        (a @ a).sum()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        b = (a @ a).sum()
    for _ in range(100):
        captured.replay()
    torch.cuda.synchronize()
    assert torch.isfinite(b)


CHECKS = {
    "native": (native, {}),
    "expandable": (expandable, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "stream_ordered": (stream_ordered, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "small": (small, {}),
    "graph": (graph, {}),
}


def main():
    if len(sys.argv) == 2:
        import torch

        CHECKS[sys.argv[1]][0](torch)
        return 0
    failed = 0
    for name, (_, env) in CHECKS.items():
        done = subprocess.run([sys.executable, __file__, name], env={**os.environ, **env}, capture_output=True, text=True, timeout=180)
        if done.returncode == 0:
            print("pass", name)
        else:
            failed += 1
            print(f"fail {name}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return 1 if failed else 0


sys.exit(main())
