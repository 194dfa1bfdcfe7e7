// Package version holds the version that boxd and boxd-init were built with.
// The two check that they are of the same build before they talk to each other.
package version

// Version is what "git describe" said when both binaries were built; the
// Makefile stamps it in with -ldflags -X. A build without the Makefile is "dev".
var Version = "dev"
