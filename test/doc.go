// Package test holds what crosses packages: the order of imports, and below it
// the virtual machine in which the privileged tests meet cgroup v2.
package test
