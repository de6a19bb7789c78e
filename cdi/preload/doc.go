// Package preload holds what a container is given to keep it to its shares: the
// preload library libaliquot.so, in C (src, abi.h), and the tests that drive it
// with real processes against the simulated driver.
//
// It has no Go of its own; the plugin takes the library as a built file.
package preload
