//go:build race

package cdi

const raceDetector = true
