// Package compat has only tests: programs and the suites that come with them run as an
// unprivileged user on the host and in a box, and what fails only in the box is either a fault
// of boxd or has a reason in docs/compatibility.md. It is not about what boxd refuses
// (test/attack), nor about single programs that it may hinder (test/programs).
package compat
