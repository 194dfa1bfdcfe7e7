package config

import "strings"

// hint suggests what a person may have meant by an unknown key: one that is written
// almost alike, or else all there are.
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

// editDistance is the number of bytes to insert, delete or replace to make b of a,
// or more than any hint needs if a is not a key that a person would write.
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
