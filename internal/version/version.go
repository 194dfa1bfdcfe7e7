// Package version holds the version that boxd and boxd-init were built with.
// The two check that they are of the same build before they talk to each other.
package version

// Unstamped is the version of a program that was not built by the Makefile, such
// as one that embeds boxd.
const Unstamped = "dev"

// Version is what "git describe" said when both binaries were built; the
// Makefile stamps it in with -ldflags -X.
var Version = Unstamped
