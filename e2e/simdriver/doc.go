// Package simdriver makes a simulated NVIDIA driver root: real shared libraries
// under the real names, for hardware that a YAML description lists, so that the
// kubelet plugin, the preload library and CUDA programs run on a machine
// without a GPU.
//
// It simulates what memory and devices look like from the CUDA driver API and
// from NVML. It runs no kernels and copies no device memory.
package simdriver
