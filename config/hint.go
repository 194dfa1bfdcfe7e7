package config

import "strings"

// hint suggests what the author of an unknown key may have meant: a key that is spelled
// almost the same, or else all keys.
func hint(key, path string, names []string) string {
	best, distance := "", len(key)/3+2
	for _, name := range names {
		if d := editDistance(key, name); d < distance {
			best, distance = name, d
		}
	}
	if best != "" {
		return `; did you mean "` + join(path, best) + `"?`
	}
	return "; there are " + strings.Join(names, ", ")
}

// editDistance returns the number of bytes to insert, delete or replace to turn a into b,
// or, if a is too long to be a key that a person would write, more than any hint needs.
func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1) // distances between a[:i] and b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
