// Package ledger has only tests: for each kind of object that a command can make the kernel hold,
// a box allocates as much as it can. It must not hold more than its memory limit and a margin, or
// more than its share of a pool of the whole host.
//
// A new kind is one row in the table of its class (sockets_test.go, files_test.go and so on): a
// function that creates the objects, and the kernel's counter of them. No row loads a program into
// the kernel more than once.
package ledger
