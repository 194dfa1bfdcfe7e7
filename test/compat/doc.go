// Package compat has only tests: they run programs, and the test suites that come with them, as
// an unprivileged user on the host and in a box. A failure only in the box is a bug of boxd or
// has a reason in docs/compatibility.md. What boxd refuses is tested in test/attack, and single
// programs that its policy may affect in test/programs.
package compat
