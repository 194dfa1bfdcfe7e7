// Package testutil has what the tests of all packages share: claims about the host ([RequireRoot],
// [RequireFeature], [RequireProgram]), the binaries under test ([BuildBinaries]) and a leak check
// around the tests of a package ([Main]).
//
// Only tests import it. It knows nothing of boxes.
package testutil
