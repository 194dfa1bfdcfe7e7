// Package network attacks the network of boxes from inside, through a daemon and through
// "boxd run". Its tests run in a network namespace of their own that leads to a second one,
// which plays the internet: it answers at every address, knows every name, and records what
// reached it. Nothing leaves the two.
package network
