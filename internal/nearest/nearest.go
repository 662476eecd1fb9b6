// Package nearest finds what somebody may have meant who mistyped a name.
package nearest

import (
	"cmp"
	"slices"
)

// Among returns at most n of the candidates that are close to name, the closest
// first: those within two edits, or a third of the name if that is more.
func Among(name string, candidates []string, n int) []string {
	type near struct {
		name     string
		distance int
	}
	var found []near
	for _, c := range candidates {
		if d := Distance(name, c); d <= max(2, len(name)/3) {
			found = append(found, near{c, d})
		}
	}
	slices.SortFunc(found, func(a, b near) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var out []string
	for _, f := range found[:min(n, len(found))] {
		out = append(out, f.name)
	}
	return out
}

// Distance counts the single-byte insertions, deletions and substitutions that
// turn a into b.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
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
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
