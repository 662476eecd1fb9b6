package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// result is one measured figure; base names the figure of the same part that
// it is compared with.
type result struct {
	name, unit string
	values     []float64
	base       string
}

func (r *result) median() float64 {
	v := slices.Clone(r.values)
	slices.Sort(v)
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// digits is how many decimals a figure is shown with.
func (r *result) digits() int {
	switch r.unit {
	case "ms", "of 1", "s":
		return 2
	case "CPU s", "CPUs":
		return 3
	case "MB", "% of a CPU":
		return 1
	}
	return 0
}

// add notes one value of a figure.
func (b *bench) add(name, unit, base string, v float64) {
	for i := range b.results {
		if b.results[i].name == name {
			b.results[i].values = append(b.results[i].values, v)
			return
		}
	}
	b.results = append(b.results, result{name: name, unit: unit, base: base, values: []float64{v}})
}

// report prints the figures of the part, in the order in which they were first
// measured, and how many processors others used meanwhile: figures beside much of
// that are not to be trusted.
func (b *bench) report(w io.Writer, others float64) error {
	p := b.part
	_, _ = fmt.Fprintf(w, "\n%s; median of %d. Others used %.2f CPUs meanwhile.\n", p.about(b), b.reps, others)
	byName := map[string]*result{}
	for i := range b.results {
		byName[b.results[i].name] = &b.results[i]
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(tw, "\n%s\tmedian\tmin\tmax\tunit\t%s\t\n", p.name, strings.TrimSuffix("ratio to "+p.ratio, "ratio to "))
	for i := range b.results {
		r := &b.results[i]
		ratio := "-"
		if base := byName[r.base]; base != nil && base.median() > 0 {
			ratio = fmt.Sprintf("%.2f", r.median()/base.median())
		}
		d := r.digits()
		_, _ = fmt.Fprintf(tw, "%s\t%.*f\t%.*f\t%.*f\t%s\t%s\t\n", r.name, d, r.median(), d, slices.Min(r.values), d, slices.Max(r.values), r.unit, ratio)
	}
	return tw.Flush()
}

// quantile returns the value below which the share q of the values lies.
func quantile(v []float64, q float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[min(int(float64(len(v))*q), len(v)-1)]
}
