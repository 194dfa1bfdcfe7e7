// Package programs has only tests: programs that many commands need work in a box,
// although boxd refuses some of the system calls that they try.
package programs
