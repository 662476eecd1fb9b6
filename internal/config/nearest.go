package config

import "strings"

// hint returns what to tell a person who wrote name: "; did you mean X?" if one
// of the candidates is close, else which one is nearest. All of them are shown
// with prefix in front.
func hint(prefix, name string, candidates []string) string {
	best, distance := nearest(name, candidates)
	switch {
	case best == "":
		return ""
	case distance <= max(2, len(name)/3) || lastPart(name) == lastPart(best):
		return "; did you mean " + prefix + best + "?"
	default:
		return "; the nearest one is " + prefix + best
	}
}

// nearest returns the candidate with the fewest edits from name. Candidates
// whose last part is the same come first: the section was left out or wrong.
func nearest(name string, candidates []string) (best string, distance int) {
	var same []string
	for _, c := range candidates {
		if lastPart(c) == lastPart(name) {
			same = append(same, c)
		}
	}
	if same != nil {
		candidates = same
	}
	for _, c := range candidates {
		if d := levenshtein(name, c); best == "" || d < distance {
			best, distance = c, d
		}
	}
	return best, distance
}

func lastPart(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// levenshtein counts the single-byte insertions, deletions and substitutions
// that turn a into b.
func levenshtein(a, b string) int {
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
