// Package simdriver makes a simulated NVIDIA driver root: real shared libraries
// under the real names, for hardware that a YAML description lists, so that the
// kubelet plugin, the preload library and CUDA programs run on a machine
// without a GPU.
//
// It simulates what memory, devices and the time of work look like from the CUDA
// driver API and from NVML. It runs no kernels and copies no device memory.
//
// # MIG
//
// A card whose model is in mig.yaml can be divided, by NVML or by the methods of
// Root, and is seen divided by NVML, CUDA and nvidia-smi. A process has the MIG
// devices whose capability nodes it sees, and CUDA takes one of them. A partition
// has its own memory and works by itself. Only root may divide, and only where the
// node of the capability "config" is. Not modelled: graphics, MPS, events of
// instances, and which profiles a driver older than the listings has.
//
// # Time
//
// A function takes as long as its name says:
//
//	busy_300us                 that long; ns, us or ms
//	busy_20us_to_400us         between the two, in a sequence that each function
//	                           repeats alike
//	meet_10us_4_allreduce      runs, and so uses its process's turns, until 4
//	                           functions with the key allreduce have begun in
//	                           different processes, streams or on different
//	                           cards; then 10us more
//	anything else              5us, and so does a handle that is no function
//
// An image that begins with "aliquot-sim-module bytes=<n>" is a module that costs
// n bytes of device memory; any other image costs nothing.
//
// A card runs one process at a time and goes round those that have work in turns
// of timeSliceMicroseconds. The work of one process is done in the order in which
// it was submitted, whatever its streams, and at most 1024 launches of it are
// outstanding on a card. An event is stamped when the card comes to it, so what
// lies between two events contains the turns of other processes. A launch of a
// graph is one piece of work. Not modelled: kernels side by side, the time of
// copies and of context switches, the order of frees in a stream, and what
// priorities, attributes and multiprocessors change.
//
// Nothing happens in the background. The state is a file beside the ledger, and
// whoever looks brings it up to date; the clock is clock_gettime of
// CLOCK_MONOTONIC and waiting is clock_nanosleep, which a test may replace. A
// process that was killed leaves no work behind, as of the last look.
package simdriver
