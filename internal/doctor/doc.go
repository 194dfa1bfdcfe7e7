// Package doctor examines whether and how well boxes can be built on this host.
//
// [Gather] finds the facts, [NewReport] judges them. The judge touches nothing,
// so that every kind of host can be put before it in a test.
package doctor
