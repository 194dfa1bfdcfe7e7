// Package programs has only tests: programs that many commands need must work in a box, although
// boxd refuses some of the system calls that they try.
package programs
