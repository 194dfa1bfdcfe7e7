// Package test has the tests that cross packages, such as the order of imports. Below it is the
// virtual machine in which the privileged tests run with cgroup v2.
package test
