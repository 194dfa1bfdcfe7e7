// Package attack has only tests: each of the probes of attack/probe is tried in
// real boxes and must be blocked. What a probe means and the incident behind it
// stands in the tables of that program.
package attack
