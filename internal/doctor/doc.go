// Package doctor finds out whether boxes can be built on this host, and how well they isolate.
//
// [Gather] finds the facts and [NewReport] judges them. The judgement is pure, so tests can present
// it with every kind of host.
package doctor
