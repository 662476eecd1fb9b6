package enqueue

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-dev/penstock/protocol"
)

// Bounds of a graph: of one call that stores tasks that refer to each other.
const (
	MaxGraphTasks        = 20_000
	MaxGraphDependencies = 100_000
)

// Dependency names a task that another depends on: exactly one of the two is set.
type Dependency struct {
	// TaskID is the id of a task of the same tenant.
	TaskID string
	// Name is the local name of a request in the same graph.
	Name string
}

// dep is a valid Dependency.
type dep struct {
	given string
	local bool
	// Of a task id: the ids it may stand for, the more likely one first. byName is
	// that of a task whose caller named it so.
	id, byName protocol.ID
}

func (d dep) String() string { return d.given }

// field is the path of a part of the request.
func (d dep) field(i int) string {
	if d.local {
		return fmt.Sprintf("depends_on[%d].name", i)
	}
	return fmt.Sprintf("depends_on[%d].task_id", i)
}

// setDependencies takes the local name and what the task depends on. Whether all
// that exists is known later.
func (it *item) setDependencies(r *Request) error {
	if err := text("name", r.Name); err != nil {
		return err
	}
	it.local = r.Name
	if len(r.DependsOn) > protocol.MaxDependencies {
		return bad("depends_on", "has %d items, at most %d are allowed", len(r.DependsOn), protocol.MaxDependencies)
	}
	policy := protocol.DependencyPolicy(r.OnDependencyFailure)
	switch {
	case policy != "" && !policy.Valid():
		return bad("on_dependency_failure", "is %q, want cancel or run", clip(r.OnDependencyFailure))
	case policy != "" && len(r.DependsOn) == 0:
		return bad("on_dependency_failure", "is only for a task with depends_on")
	case len(r.DependsOn) == 0:
		return nil
	}
	it.onFailure = cmp.Or(policy, protocol.DependencyCancel)
	seen := make(map[Dependency]int, len(r.DependsOn))
	it.deps = make([]dep, len(r.DependsOn))
	for i, d := range r.DependsOn {
		if (d.TaskID == "") == (d.Name == "") {
			return bad(fmt.Sprintf("depends_on[%d]", i), "must have either a task_id or a name")
		}
		if at, ok := seen[d]; ok {
			return bad(fmt.Sprintf("depends_on[%d]", i), "is %q, as is depends_on[%d]: name each task once", clip(d.TaskID+d.Name), at)
		}
		seen[d] = i
		it.deps[i] = dep{given: d.TaskID + d.Name, local: d.Name != ""}
		if err := text(it.deps[i].field(i), it.deps[i].given); err != nil {
			return err
		}
		if !it.deps[i].local {
			it.deps[i].byName = protocol.NameID(it.tenant, d.TaskID)
			it.deps[i].id = it.deps[i].byName
			if id, err := protocol.ParseID(d.TaskID); err == nil {
				it.deps[i].id = id
			}
		}
	}
	return nil
}

// dependenciesDigest is what two requests must have in common to depend on the
// same; "" for none. The order does not count.
func dependenciesDigest(upstreams []protocol.ID, policy protocol.DependencyPolicy) string {
	if len(upstreams) == 0 {
		return ""
	}
	ids := slices.Clone(upstreams)
	slices.SortFunc(ids, func(a, b protocol.ID) int { return slices.Compare(a[:], b[:]) })
	h := sha256.New()
	h.Write([]byte(policy))
	for _, id := range ids {
		h.Write(id[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// itemError is the fault of one item of several.
type itemError struct {
	at  int
	err error
}

func (e *itemError) Error() string { return fmt.Sprintf("item %d: %v", e.at, e.err) }
func (e *itemError) Unwrap() error { return e.err }

// inGraph gives an error about one task of a graph its field path.
func inGraph(at int, err error) error {
	e, ok := err.(*protocol.Error)
	if !ok {
		return err
	}
	path := fmt.Sprintf("tasks[%d]", at)
	if e.Field != "" {
		path += "." + e.Field
	}
	return &protocol.Error{Code: e.Code, Field: path, Message: e.Message}
}

// called is what the caller knows an item of a graph by.
func (it *item) called(i int) string {
	return cmp.Or(it.local, it.name, fmt.Sprintf("tasks[%d]", i))
}

// names are the items of a graph by what others can refer to them by.
type names struct {
	local map[string]int
	ids   map[protocol.ID]int
}

// find returns the item that a dependency refers to.
func (n *names) find(d dep) (i int, ok bool) {
	if d.local {
		i, ok = n.local[d.given]
		return i, ok
	}
	if i, ok = n.ids[d.id]; !ok {
		i, ok = n.ids[d.byName]
	}
	return i, ok
}

// graphNames collects names and ids, and refuses what is there twice, and local
// names that nothing has.
func graphNames(items []*item) (*names, *itemError) {
	n := &names{local: map[string]int{}, ids: make(map[protocol.ID]int, len(items))}
	keys := map[scopedKey]int{}
	for i, it := range items {
		if at, ok := n.local[it.local]; ok && it.local != "" {
			return nil, &itemError{i, bad("name", "is %q, as is that of tasks[%d]: local names must be unique within the call", clip(it.local), at)}
		}
		if at, ok := n.ids[it.id]; ok {
			return nil, &itemError{i, bad("task_id", "is that of tasks[%d], too: a task can be in a graph once", at)}
		}
		key := scopedKey{it.scope, it.key}
		if at, ok := keys[key]; ok && it.key != "" {
			return nil, &itemError{i, bad("idempotency_key", "is that of tasks[%d], too, in the same scope: each task of a graph needs its own", at)}
		}
		if it.local != "" {
			n.local[it.local] = i
		}
		n.ids[it.id], keys[key] = i, i
	}
	total := 0
	for i, it := range items {
		if total += len(it.deps); total > MaxGraphDependencies {
			return nil, &itemError{i, bad("depends_on", "makes more than %d dependencies in one call: split the graph", MaxGraphDependencies)}
		}
		for k, d := range it.deps {
			at, ok := n.find(d)
			if d.local && !ok {
				return nil, &itemError{i, bad(d.field(k), "is %q, but no task of this call has that name", clip(d.given))}
			}
			if ok && at == i {
				return nil, &itemError{i, bad(d.field(k), "is the task itself: it would wait for ever")}
			}
		}
	}
	return n, nil
}

// sorted returns the items of a graph in an order in which each comes after what
// it depends on; the error names a cycle.
func (n *names) sorted(items []*item) ([]int, *itemError) {
	waits := make([]int, len(items))
	below := make([][]int, len(items))
	for i, it := range items {
		for _, d := range it.deps {
			if at, ok := n.find(d); ok {
				waits[i]++
				below[at] = append(below[at], i)
			}
		}
	}
	order := make([]int, 0, len(items))
	for i := range items {
		if waits[i] == 0 {
			order = append(order, i)
		}
	}
	for next := 0; next < len(order); next++ {
		for _, i := range below[order[next]] {
			if waits[i]--; waits[i] == 0 {
				order = append(order, i)
			}
		}
	}
	if len(order) == len(items) {
		return order, nil
	}
	return nil, n.cycle(items, waits)
}

// maxCycleShown bounds the tasks of a cycle that an error names.
const maxCycleShown = 10

// cycle finds one among the items that still wait.
func (n *names) cycle(items []*item, waits []int) *itemError {
	at := slices.IndexFunc(waits, func(w int) bool { return w > 0 })
	seen := map[int]int{} // item: its place in path
	var path []int
	for {
		if from, ok := seen[at]; ok {
			path = path[from:]
			break
		}
		seen[at] = len(path)
		path = append(path, at)
		for _, d := range items[at].deps { // one of them waits, too
			if i, ok := n.find(d); ok && waits[i] > 0 {
				at = i
				break
			}
		}
	}
	slices.Reverse(path) // in the order in which they would run
	shown := make([]string, 0, maxCycleShown+2)
	for _, i := range path[:min(len(path), maxCycleShown)] {
		shown = append(shown, clip(items[i].called(i)))
	}
	if len(path) > maxCycleShown {
		shown = append(shown, fmt.Sprintf("… %d more", len(path)-maxCycleShown))
	}
	shown = append(shown, clip(items[path[0]].called(path[0])))
	first := slices.Min(path)
	return &itemError{first, bad("depends_on", "is part of a cycle, in which each task waits for the one before: %s", strings.Join(shown, " → "))}
}
