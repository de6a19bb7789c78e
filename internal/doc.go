// Package internal holds nothing itself. Its tests check what is true of all packages: the direction of their imports
// and that each says what it is for.
package internal
