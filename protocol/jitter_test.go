package protocol

import (
	"fmt"
	"math"
	"testing"
)

// The statistics below have a fixed seed: they pass or fail always. Their limits
// are such that one truly uniform sample in a million exceeds them.

const jitterSeed = "fixed seed of the jitter tests"

func jitterPolicy(jitterMax int64) RetryPolicy {
	return RetryPolicy{Strategy: StrategyFixed, BaseMS: 1, MaxBackoffMS: 1, JitterMaxMS: jitterMax}
}

// chiSquare compares counts with equal ones.
func chiSquare(counts []int) float64 {
	n, x := 0, 0.0
	for _, c := range counts {
		n += c
	}
	want := float64(n) / float64(len(counts))
	for _, c := range counts {
		x += (float64(c) - want) * (float64(c) - want) / want
	}
	return x
}

// kolmogorov is √n times the largest distance between the distribution of the
// counted values 0, 1, 2 … and the uniform one.
func kolmogorov(counts []int) float64 {
	n := 0
	for _, c := range counts {
		n += c
	}
	seen, most := 0, 0.0
	for i, c := range counts {
		seen += c
		most = max(most, math.Abs(float64(seen)/float64(n)-float64(i+1)/float64(len(counts))))
	}
	return most * math.Sqrt(float64(n))
}

// Over 100,000 tasks the jitter is uniform on 0 … jitter_max, both included,
// for the first retry as for any later one.
func TestJitterOverTasks(t *testing.T) {
	t.Parallel()
	tasks := ids(100_000)
	for _, tt := range []struct {
		jitterMax   int64
		least, most float64 // of chi-square; a sample can also be too even
	}{{0, 0, 0}, {1, 0, 23.93}, {300, 197.60, 431.14}, {499, 362.95, 663.81}} {
		for _, retry := range []int{1, 2, 3, 10, MaxRetriesLimit} {
			t.Run(fmt.Sprintf("jitter_max=%d/retry=%d", tt.jitterMax, retry), func(t *testing.T) {
				t.Parallel()
				p, counts := jitterPolicy(tt.jitterMax), make([]int, tt.jitterMax+1)
				for _, id := range tasks {
					ms := p.Jitter([]byte(jitterSeed), id, retry).Milliseconds()
					if ms < 0 || ms > tt.jitterMax {
						t.Fatalf("task %s has a jitter of %d ms", id, ms)
					}
					counts[ms]++
				}
				if x := chiSquare(counts); x < tt.least || x > tt.most {
					t.Errorf("chi-square is %.2f, want %.2f to %.2f", x, tt.least, tt.most)
				}
				if d := kolmogorov(counts); d > 2.693 {
					t.Errorf("Kolmogorov's distance is %.3f, want at most 2.693", d)
				}
				if counts[0] == 0 || counts[tt.jitterMax] == 0 {
					t.Errorf("0 ms comes %d times, %d ms %d times", counts[0], tt.jitterMax, counts[tt.jitterMax])
				}
			})
		}
	}
}

// The jitter of one retry says nothing about that of the next, of the next
// task, or of the same task in another deployment: in a table of 10 × 10 the
// pairs are even, and they do not correlate.
func TestJittersAreIndependent(t *testing.T) {
	t.Parallel()
	tasks := ids(100_001)
	seed, p := []byte(jitterSeed), jitterPolicy(99)
	at := func(seed []byte, task, retry int) int64 { return p.Jitter(seed, tasks[task], retry).Milliseconds() }
	pairs := map[string]func(i int) (int64, int64){
		"next task":        func(i int) (int64, int64) { return at(seed, i, 1), at(seed, i+1, 1) },
		"other deployment": func(i int) (int64, int64) { return at(seed, i, 1), at([]byte("another"), i, 1) },
	}
	for retry := 1; retry <= 4; retry++ {
		pairs[fmt.Sprintf("retries %d and %d", retry, retry+1)] = func(i int) (int64, int64) { return at(seed, i, retry), at(seed, i, retry+1) }
	}
	for name, pair := range pairs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n, mean, variance = 100_000, 49.5, (100*100 - 1) / 12.0
			cells, product := make([]int, 100), 0.0
			for i := range n {
				a, b := pair(i)
				cells[a/10*10+b/10]++
				product += (float64(a) - mean) * (float64(b) - mean)
			}
			if x := chiSquare(cells); x < 45.83 || x > 180.79 {
				t.Errorf("chi-square of the pairs is %.2f, want 45.83 to 180.79", x)
			}
			if r := product / n / variance; math.Abs(r)*math.Sqrt(n) > 4.892 {
				t.Errorf("they correlate by %.4f", r)
			}
		})
	}
}
