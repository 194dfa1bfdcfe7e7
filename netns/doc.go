// Package netns gives a box one network namespace: loopback only, or wired on
// demand; and its ports.
//
// For now it is loopback only. The package does not start anything in a
// namespace and does not know boxes: callers hand in a namespace, as a
// descriptor of it or as the pidfd of a process that is in it.
package netns
