// Package mounts owns what may be mounted where: the rules against escape that need the
// kernel, descriptor-based mounting, id-mapping, and attaching and detaching mounts in a
// running box. The value of a mount, and the rules that need no kernel, are in package
// engine/spec.
//
// It does not know boxes, images or policies: callers hand in namespaces,
// directories and id maps as descriptors and values.
package mounts
