package result

import "github.com/penstock-dev/penstock/internal/streams"

// Results may be large: a read starts small, and grows while what it brings is
// small.
const (
	firstCount = 64
	maxBytes   = 16 << 20
)

func nextCount(count, most int, es []streams.Entry, err error) int {
	if err != nil { // perhaps more than arrives in time
		return max(count/2, 1)
	}
	size := streams.Size(es)
	switch {
	case size > maxBytes:
		return max(len(es)*maxBytes/size, 1)
	case len(es) == count && size < maxBytes/4:
		return min(2*count, most)
	}
	return count
}
