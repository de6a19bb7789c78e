#!/bin/bash
# Builds what check.sh needs into a folder, bin/gpucheck if none is given:
#
#   cdi/preload/gpucheck/build.sh [OUT]      all of it; needs Go, gcc and make
#   cdi/preload/gpucheck/build.sh OUT c      only what is in C
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "${1:-$here/../../../bin/gpucheck}" && cd "${1:-$here/../../../bin/gpucheck}" && pwd)
compiler=${CC:-gcc}

# The share directory is relative: each program has its own where it runs.
make -s -C "$here/.." CC="$compiler" OUT="$out/library" SHARES_DIR=aliquot-shares
mv "$out/library/libaliquot.so" "$out/libaliquot.so"
rm -rf "$out/library"
for program in identity memory spin structs; do
	"$compiler" -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -o "$out/$program" "$here/native/$program.c" -ldl -lm
done
if [ "${2:-}" = c ]; then
	exit
fi
cd "$here/../../.."
CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" \
	go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$out/gpucheck" ./cdi/preload/gpucheck
