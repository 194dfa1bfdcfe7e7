// Package netns creates and checks the network namespaces of boxes. For now they
// have loopback only.
//
// The package starts nothing in a namespace and does not know boxes: callers pass a
// namespace as a descriptor of it, or as the pidfd of a process in it.
package netns
