"""Whether PyTorch is held to its quota, by each way in which it allocates.

Run under the preload library with a share of QUOTA_MIB; each check runs in a process of its own, since PyTorch chooses
its allocator once. Prints "pass NAME" or "fail NAME: why" and exits 1 if any failed.
"""

import os
import subprocess
import sys

MIB = 1 << 20
QUOTA = int(os.environ["QUOTA_MIB"]) * MIB
SECONDS = 40  # of one check


def fill(torch, step):
    """Allocates until it is refused; returns the bytes that were had."""
    kept, total = [], 0
    while total <= 2 * QUOTA:
        try:
            kept.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            return total
        total += step
    raise AssertionError(f"{total // MIB} MiB were given, of {QUOTA // MIB}")


def held(torch, step=64 * MIB):
    """All that was shown free can be had, but for what PyTorch itself rounds up, and no more than the quota."""
    free, total = torch.cuda.mem_get_info()
    assert total == QUOTA, f"total is {total // MIB} MiB"
    got = fill(torch, step)
    assert got <= QUOTA, f"{got // MIB} MiB were given"
    assert got >= free - 256 * MIB, f"{got // MIB} MiB were given, {free // MIB} were shown free"


def small(torch):
    held(torch, step=MIB)


def graph(torch):
    """A captured graph goes on to run, and gives the same as the calls did."""
    a = torch.randn(512, 512, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        want = a @ a
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        got = a @ a
    for _ in range(100):
        captured.replay()
    torch.cuda.synchronize()
    assert torch.allclose(want, got, atol=0.01), f"off by {(want - got).abs().max().item()}"


ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
CHECKS = {
    "native": (held, {}),
    "expandable": (held, {ALLOCATOR: "expandable_segments:True"}),
    "stream_ordered": (held, {ALLOCATOR: "backend:cudaMallocAsync"}),
    "small": (small, {}),
    "graph": (graph, {}),
}


def run(name, env):
    """Returns why a check failed, or None."""
    command = [sys.executable, os.path.abspath(__file__), name]
    try:
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]


def main():
    if len(sys.argv) == 2:
        import torch

        CHECKS[sys.argv[1]][0](torch)
        return 0
    failed = 0
    for name, (_, env) in CHECKS.items():
        why = run(name, env)
        print(f"fail {name}: {why}" if why else f"pass {name}", flush=True)
        failed += why is not None
    return 1 if failed else 0


sys.exit(main())
