// Package rules holds the values that say what a box may reach on the network: [Rules],
// its syntax and validation, and the decision about one name ([Set.Decide]) and about one
// address ([Set.Address]).
//
// A name is decided before it is resolved; the address that is dialled is decided
// afterwards, whatever resolved it. The package opens no connections, resolves nothing and
// reads no files (package egress).
package rules
