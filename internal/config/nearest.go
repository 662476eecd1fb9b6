package config

import (
	"strings"

	edits "github.com/penstock-dev/penstock/internal/nearest"
)

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
		if d := edits.Distance(name, c); best == "" || d < distance {
			best, distance = c, d
		}
	}
	return best, distance
}

func lastPart(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }
