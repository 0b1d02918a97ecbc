package machine

import (
	"errors"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
)

// TestValidate spoils 2s2c2t (CPUs 0-7, cores 0,4 1,5 2,6 3,7; domains: 2
// sockets, 2 dies, 2 nodes, 2 L3, 4 L2, 4 cores) in one way each.
func TestValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		spoil        func(*Machine)
		want         string
		inconsistent bool
	}{
		{"no CPU", func(m *Machine) { *m = Machine{} }, "online: no CPU", false},
		{"online and offline", func(m *Machine) { m.Offline = cpuset.MustOf(3, 9) }, "CPUs 3: online and offline", false},
		{"isolated unknown", func(m *Machine) { m.Isolated = cpuset.MustOf(9) }, "isolated CPUs 9", false},
		{"CPU undescribed", func(m *Machine) { m.CPUs = m.CPUs[1:] }, "described CPUs 1-7", false},
		{"CPU twice", func(m *Machine) { m.CPUs[1].ID = 0 }, "cpu 0: described after cpu 0", false},
		{"CPU out of range", func(m *Machine) { m.CPUs[7].ID = 4096 }, "out of range", false},
		{"CPU negative", func(m *Machine) { m.CPUs[0].ID = -1 }, "out of range", false},
		{"negative frequency", func(m *Machine) { m.CPUs[0].MaxKHz = -1 }, "negative", false},
		{"unknown core kind", func(m *Machine) { m.CPUs[0].Kind = "X" }, `kind "X"`, false},
		{"unknown domain kind", func(m *Machine) { m.Domains[15].Kind = 6 }, "no such kind", false},
		{"kinds out of order", func(m *Machine) { m.Domains[0], m.Domains[2] = m.Domains[2], m.Domains[0] }, "listed after", false},
		{"domain twice", func(m *Machine) { m.Domains[1].ID = 0 }, "socket 0: listed after socket 0", false},
		{"gap in ids", func(m *Machine) { m.Domains[1].ID = 2 }, "socket 2: follows socket 0 with a gap", false},
		{"first not 0", func(m *Machine) { m.Domains = m.Domains[1:] }, "socket 1: the first is not number 0", false},
		{"not by lowest CPU", func(m *Machine) {
			m.Domains[0].CPUs, m.Domains[1].CPUs = m.Domains[1].CPUs, m.Domains[0].CPUs
		}, "socket 1: not numbered by the lowest CPU", false},
		{"foreign CPU", func(m *Machine) { m.Domains[0].CPUs, _ = m.Domains[0].CPUs.With(100) }, "CPUs 100 are not online", false},
		{"empty core", func(m *Machine) { m.Domains[15].CPUs = cpuset.Set{} }, "core 3: no CPUs", false},
		{"negative size", func(m *Machine) { m.Domains[6].Bytes = -1024 }, "not whole KiB", false},
		{"odd size", func(m *Machine) { m.Domains[6].Bytes = 1000 }, "not whole KiB", false},
		{"size of a core", func(m *Machine) { m.Domains[15].Bytes = 1024 }, "core 3: has a size", false},
		{"kernel id", func(m *Machine) { m.Domains[0].KernelID = -2 }, "kernel id -2", false},
		{"node renumbered", func(m *Machine) { m.Domains[5].ID = 7 }, "not the kernel's node number", false},
		{"too few distances", func(m *Machine) { m.Distances = m.Distances[1:] }, "1 rows for 2 nodes", false},
		{"ragged distances", func(m *Machine) { m.Distances[1] = []int{10} }, "row 1: 1 numbers", false},
		{"distance out of range", func(m *Machine) { m.Distances[0][1] = 256 }, "256 is out of range", false},
		{"name of two lines", func(m *Machine) { m.Name = "a\nb" }, "name", false},
		{"untrimmed model", func(m *Machine) { m.Model = " x" }, "model", false},

		{"CPU in two sockets", func(m *Machine) { m.Domains[0].CPUs = m.Online }, "socket 1: CPUs 2-3,6-7 are in another socket too", true},
		{"CPU in no node", func(m *Machine) { m.Domains[5].CPUs = cpuset.MustOf(2, 6) }, "node: CPUs 3,7 are in none", true},
		{"core across nodes", func(m *Machine) {
			m.Domains[4].CPUs, m.Domains[5].CPUs = cpuset.MustParse("0-3"), cpuset.MustParse("4-7")
		}, "core 0 (CPUs 0,4): split between domains of kind node", true},
		{"core partly without L3", func(m *Machine) { m.Domains[7].CPUs = cpuset.MustOf(2, 3, 6) },
			"core 3 (CPUs 3,7): split between domains of kind l3", true},
		{"die across sockets", func(m *Machine) {
			m.Domains[2].CPUs = m.Online
			m.Domains = append(m.Domains[:3], m.Domains[4:]...)
		}, "die 0 (CPUs 0-7): split between domains of kind socket", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := short(t, "2s2c2t")
			if err := m.Validate(); err != nil {
				t.Fatalf("before: %v", err)
			}
			c.spoil(m)
			err := m.Validate()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want an error with %q", err, c.want)
			}
			if errors.Is(err, ErrInconsistent) != c.inconsistent {
				t.Errorf("ErrInconsistent is %v: %v", !c.inconsistent, err)
			}
		})
	}
}

// TestValidateAllows: what real machines have and a model might forbid.
func TestValidateAllows(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Machine){
		"memory-only node": func(m *Machine) {
			m.Domains = append(m.Domains[:6:6], append([]Domain{{Kind: Node, ID: 9, KernelID: 9, Bytes: 1 << 30}}, m.Domains[6:]...)...)
			m.Distances = nil
		},
		"CPUs without L3":   func(m *Machine) { m.Domains = append(m.Domains[:7:7], m.Domains[8:]...) },
		"nothing told":      func(m *Machine) { m.Domains, m.Distances = nil, nil },
		"isolated, offline": func(m *Machine) { m.Offline, m.Isolated = cpuset.MustOf(9), cpuset.MustOf(0, 9) },
		"kernel ids repeat": func(m *Machine) { m.Domains[0].KernelID, m.Domains[1].KernelID = -1, -1 },
	} {
		m := short(t, "2s2c2t")
		change(m)
		if err := m.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		Unusual(m)
	}
}
