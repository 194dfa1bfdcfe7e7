// Package attack has only tests: they run each probe of attack/probe in real boxes, which must
// block it. The tables of that program say what a probe means, and name the incident behind it.
package attack
