// Package spec holds the values that describe a box: [Spec] and its parts ([Limits],
// [User], [Mount]), [Change], sizes and durations, their defaults and bounds, and
// [FieldError], the one error for a value that breaks a rule.
//
// Every value can be validated, serialised and compared without a kernel, so the package
// makes no system calls and builds on every platform. It does not build boxes or run
// commands (package engine and the packages below it), and it does not decide who may
// have what (package policy).
//
// Package engine has aliases for the types that appear in its own signatures, so a
// program that embeds boxd imports engine alone.
package spec
