package testutil

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"testing"
)

// SetUp prepares what the Examples of a package use. It gets the paths of the programs under test, and
// a directory that every user may enter and that is removed at the end. It returns a function that
// undoes it. An Example has no testing.T, so it can neither build the programs nor clean up after a
// failure.
type SetUp func(boxd, boxdInit, dir string) (tearDown func() error, err error)

// MainExamples runs the tests of a package that need no privilege, and its Examples, which create
// boxes. The package belongs to both classes of .ci/packages: the privileged pass, recognised by
// BOXD_BIN_DIR, runs everything like [MainWithExamples]; the unprivileged pass runs only the tests,
// like [MainUnprivileged].
func MainExamples(m *testing.M, setUp SetUp) {
	if os.Getenv("BOXD_BIN_DIR") == "" {
		skipExamples()
		MainUnprivileged(m)
	}
	MainWithExamples(m, setUp)
}

// MainWithExamples is [Main] for a package whose Examples create boxes. Without root the Examples are
// skipped. With CI set they run and fail, like a test that calls [RequireRoot].
func MainWithExamples(m *testing.M, setUp SetUp) {
	if isFuzzWorker() {
		Main(m)
	}
	tests := func() int { return runExamples(m.Run, os.Stderr, setUp) }
	os.Exit(run(tests, os.Stderr, []string{DefaultStateDir}))
}

// runExamples runs tests between setUp and its tearDown, which runs even if an Example panics. The
// leak check comes after that.
func runExamples(tests func() int, report io.Writer, setUp SetUp) (code int) {
	if os.Geteuid() != 0 && os.Getenv("CI") == "" {
		fmt.Fprintln(report, "skipping Examples, which need root: run make test-root")
		skipExamples()
		return tests()
	}
	boxd, boxdInit, err := binariesUnderTest()
	if err != nil {
		fmt.Fprintln(report, err)
		return 1
	}
	dir, err := makeReachable("")
	var tearDown func() error
	if err == nil {
		tearDown, err = setUp(boxd, boxdInit, dir)
	}
	if err != nil {
		os.RemoveAll(dir)
		fmt.Fprintf(report, "setting up Examples: %v\n", err)
		return 1
	}
	defer func() {
		if err := errors.Join(tearDown(), os.RemoveAll(dir)); err != nil {
			fmt.Fprintf(report, "after Examples: %v\n", err)
			code = max(code, 1)
		}
	}()
	return tests()
}

// skipExamples adds all Examples to -test.skip.
func skipExamples() {
	if !flag.Parsed() {
		flag.Parse()
	}
	skip := flag.Lookup("test.skip").Value
	pattern := "^Example"
	if given := skip.String(); given != "" {
		pattern += "|" + given
	}
	if err := skip.Set(pattern); err != nil {
		panic(err) // a string flag takes any string
	}
}
