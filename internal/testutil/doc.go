// Package testutil is what the tests of all packages share: claims about the
// host ([RequireRoot], [RequireFeature], [RequireProgram]), the binaries under
// test ([BuildBinaries]) and a leak check around a package's tests ([Main]).
//
// It is imported by tests only and knows nothing of boxes.
package testutil
