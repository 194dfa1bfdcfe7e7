// Package native tests boxes through the library that other programs embed, engine and
// engine/native, against the kernel and from inside of boxes. It tests the promises: limits,
// commands, results, mounts, network, root file system. Attacks are in test/attack, crashes in
// test/faults, the command line in test/e2e.
package native
