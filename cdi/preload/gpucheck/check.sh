#!/bin/bash
# Checks the preload library on a machine with a GPU that nothing else uses, in less than eight minutes:
#
#   cdi/preload/gpucheck/check.sh [RESULTS.md [arguments of gpucheck]]
#
# build.sh must have filled bin/gpucheck (GPUCHECK_BIN) before, here or elsewhere; where there is a compiler, what is in C
# is compiled anew. GPUCHECK_PARTS names the parts to run, all if unset. Neither network nor Go is needed. Exits 1 if any
# part failed; a part whose programs are not there is left out, and said to be.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${GPUCHECK_BIN:-$here/../../../bin/gpucheck}
bin=$(cd "$bin" && pwd) || exit 2
results=${1:-/dev/null}
[ $# -gt 0 ] && shift
parts=${GPUCHECK_PARTS:-identity wrapped structs memory cores torch}
work=$(mktemp -d)
export TMPDIR=$work
trap 'rm -rf "$work"' EXIT
failed=0
summary=

finish() { # name, verdict, seconds
	summary+="| $1 | $2 | $3 s |"$'\n'
	echo "== $1: $2 ($3 s)"
	[ "$2" = fail ] && failed=1
	return 0
}

# part NAME SECONDS COMMAND...: runs it in a folder of its own; 77 says that it was left out.
part() {
	local name=$1 limit=$2 start=$SECONDS
	shift 2
	((limit > 475 - start)) && limit=$((start < 475 ? 475 - start : 1))
	[[ " $parts " == *" $name "* ]] || return 0
	mkdir -p "$work/$name"
	(cd "$work/$name" && timeout --kill-after=5 "$limit" "$@") >"$work/$name.txt" 2>&1
	local code=$?
	cat "$work/$name.txt"
	case $code in
	0) finish "$name" pass $((SECONDS - start)) ;;
	77) finish "$name" "left out" $((SECONDS - start)) ;;
	124 | 137) echo "timed out after $limit s" | tee -a "$work/$name.txt"; finish "$name" fail $((SECONDS - start)) ;;
	*) echo "ended with $code" >>"$work/$name.txt"; finish "$name" fail $((SECONDS - start)) ;;
	esac
}

# The carried programs are for a processor like this and a C library no older; a compiler makes sure.
compile() {
	if command -v gcc >/dev/null && command -v make >/dev/null && "$here/build.sh" "$work/bin" c >"$work/compile.txt" 2>&1; then
		cp "$bin/gpucheck" "$work/bin/" && bin=$work/bin
		echo "compiled here with $(gcc --version | head -1)"
	else
		echo "the programs are those that were carried"
		[ ! -e "$work/compile.txt" ] || cat "$work/compile.txt"
	fi
}

# The driver compiles the kernel itself unless there is an assembler: then its compiler need not be installed.
assemble() {
	local capability
	capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
	command -v ptxas >/dev/null && [[ $capability =~ ^[0-9]+$ ]] || return 0
	"$bin/spin" ptx >"$work/spin.ptx" && ptxas -arch="sm_$capability" -o "$work/spin.cubin" "$work/spin.ptx" && export SPIN_MODULE=$work/spin.cubin
}

# The headers of CUDA, wherever they are.
headers() {
	local nvcc folder
	nvcc=$(command -v nvcc) && nvcc=$(dirname "$(readlink -f "$nvcc")")/../include
	for folder in "${CUDA_HOME:+$CUDA_HOME/include}" "$nvcc" /usr/local/cuda/include /usr/local/cuda/targets/*/include; do
		[ -n "$folder" ] && [ -e "$folder/cuda.h" ] && echo "$folder" && return
	done
	return 1
}

structs() {
	local folder flags=
	folder=$(headers) && command -v gcc >/dev/null || { echo "no headers of CUDA, or no gcc"; return 77; }
	[ -e "$folder/nvml.h" ] && flags=-DNVML
	gcc $flags -o ours "$here/native/structs.c" && gcc $flags -DCUDA_H -I"$folder" -o theirs "$here/native/structs.c" || return
	./ours >ours.txt && ./theirs >theirs.txt && diff ours.txt theirs.txt || return
	echo "$(wc -l <ours.txt) sizes, places and values as in $folder/cuda.h${flags:+ and nvml.h}"
}

memory() {
	"$bin/gpucheck" -share . -memory 1024 && LD_PRELOAD=$bin/libaliquot.so "$bin/memory" 1024
}

torch() {
	python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || { echo "no python3 with a PyTorch that sees a GPU"; return 77; }
	"$bin/gpucheck" -share . -memory 6144 -context 512 && LD_PRELOAD=$bin/libaliquot.so QUOTA_MIB=6144 python3 "$here/torch_check.py"
}

wrapped() {
	LD_PRELOAD=$bin/libaliquot.so "$bin/identity" libaliquot.so
}

export CUDA_DEVICE_ORDER=PCI_BUS_ID # as NVML counts
export -f headers structs memory torch wrapped
hardware=$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | head -1)
echo "GPU: ${hardware:-nvidia-smi says nothing}; $(uname -r); $(date -u +%F)"
compile
assemble
export here bin
part identity 20 "$bin/identity"
part wrapped 20 bash -c wrapped
part structs 30 bash -c structs
part memory 60 bash -c memory
part cores 440 "$bin/gpucheck" "$@"
part torch 150 bash -c torch

{
	echo "### $(date -u +%F), ${hardware:-unknown hardware}"
	printf '\n| part | result | took |\n|---|---|---:|\n%s' "$summary"
	for name in identity wrapped structs memory torch; do
		[ -e "$work/$name.txt" ] && printf '\n%s:\n\n```\n%s\n```\n' "$name" "$(cat "$work/$name.txt")"
	done
	[ -e "$work/cores.txt" ] && printf '\ncores:\n\n%s\n' "$(sed -E 's/^(GPU:|method:|bench) /- \1 /' "$work/cores.txt")"
} >"$results"
printf '\n| part | result | took |\n|---|---|---:|\n%s' "$summary"
exit $failed
