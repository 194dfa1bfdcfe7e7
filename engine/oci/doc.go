// Package oci builds boxes with an OCI runtime, a program such as runc: it writes the bundle
// that the runtime reads (runtime-spec, config.json), and drives the runtime's command line.
//
// The runtime makes the namespaces of a box, enters those that exist already, pivots into its
// root, drops privileges and executes PID 1. After that it is not needed any more: the box
// has no process of it, and what it has recorded of the box may be deleted. Cgroups, the
// root, user and network namespaces come from the caller, engine/native/launcher.
package oci
