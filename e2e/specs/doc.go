// Package specs holds the end-to-end tests that `make e2e` runs: what Aliquot promises, each promise on a real cluster
// with simulated GPUs, and what becomes of it when things break. It has no code but tests, under the build tag e2e.
package specs
