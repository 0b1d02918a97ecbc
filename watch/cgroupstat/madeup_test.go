package cgroupstat

import (
	"testing"

	"berth.dev/berth/watch"
)

// A signal that all groups tell is one row of the table, with a parser where none of the
// package's fits. Not parallel: it changes the table.
func TestAddingASignal(t *testing.T) {
	table := signalInfos
	defer func() { signalInfos = table }()
	swap := Signal(len(table))
	signalInfos = append(table[:len(table):len(table)], signalInfo{
		name: "swap", v2: source{controller: "memory", files: []string{"memory.swap.current"}, parse: single(key{quantity: watch.MemoryAnon, scale: 1})},
	})
	files := v2Files()
	files["memory.swap.current"] = "512\n"
	c := newChanging(t, 2, files, []Signal{Usage, swap})
	if got := c.read(Request{Read: SetOf(Usage, swap)}); got[watch.MemoryAnon] != 512 || got[watch.CPUTime] != 3 {
		t.Errorf("tells %v", got)
	}
	c.write("memory.swap.current", "1024\n")
	if got := c.read(Request{Read: SetOf(Usage, swap), Fresh: SetOf(swap)}); got[watch.MemoryAnon] != 1024 {
		t.Errorf("tells %v", got)
	}
	if all := Signals(); all[len(all)-1] != swap || swap.String() != "swap" {
		t.Errorf("listed: %v", all)
	}
	delete(files, "memory.swap.current")
	err := opened(t, []Tree{tree(t, 2, files)}, swap).Signals()[0].Err
	if want := "swap of a group: not supported: there is no memory.swap.current (enable the memory controller in the parent's cgroup.subtree_control)"; err == nil || err.Error() != want {
		t.Errorf("where it is not there: %v, want %s", err, want)
	}
}
