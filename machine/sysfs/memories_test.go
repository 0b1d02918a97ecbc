package sysfs_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"berth.dev/berth/machine/sysfs"
)

func TestReadMemories(t *testing.T) {
	t.Parallel()
	const node, tier = "sys/devices/system/node/", "sys/devices/virtual/memory_tiering/memory_tier"
	plain := map[string]string{node + "has_memory": "0-3\n", node + "has_cpu": "0-1\n", node + "has_normal_memory": "0-3\n"}
	for name, c := range map[string]struct {
		files map[string]string // over plain; "-" is none
		want  string            // dram, pmem, hbm, untold, movable
	}{
		"persistent memory":            {map[string]string{tier + "4/nodelist": "0-1\n", tier + "22/nodelist": "2-3\n"}, "0-1|2-3|||"},
		"high-bandwidth memory":        {map[string]string{tier + "4/nodelist": "0-1", tier + "2/nodelist": "2-3"}, "0-1||2-3||"},
		"both":                         {map[string]string{tier + "4/nodelist": "0-1", tier + "3/nodelist": "2", tier + "10/nodelist": "3"}, "0-1|3|2||"},
		"numbers, not words":           {map[string]string{tier + "10/nodelist": "0-1", tier + "9/nodelist": "2-3"}, "0-1||2-3||"},
		"CPUs in two tiers":            {map[string]string{tier + "4/nodelist": "0", tier + "5/nodelist": "2", tier + "6/nodelist": "1", tier + "7/nodelist": "3"}, "0-2|3|||"},
		"as fast to the kernel":        {map[string]string{tier + "4/nodelist": "0-3"}, "0-3||||"},
		"no tiers":                     {nil, "0-1|||2-3|"},
		"a node in no tier":            {map[string]string{tier + "4/nodelist": "0-2"}, "0-2|||3|"},
		"nodes with CPUs in no tier":   {map[string]string{tier + "22/nodelist": "2-3"}, "0-1|||2-3|"},
		"movable":                      {map[string]string{tier + "4/nodelist": "0-1", tier + "22/nodelist": "2-3", node + "has_normal_memory": "0-2"}, "0-1|2-3|||3"},
		"not told what is movable":     {map[string]string{node + "has_normal_memory": "-"}, "0-1|||2-3|"},
		"CPUs without memory":          {map[string]string{node + "has_memory": "1-2", node + "has_normal_memory": "1-2"}, "1|||2|"},
		"no NUMA":                      {map[string]string{node + "has_memory": "-", node + "has_cpu": "-", node + "has_normal_memory": "-"}, "||||"},
		"no list":                      {map[string]string{tier + "4/nodelist": "0-"}, "memory_tier4/nodelist"},
		"not a tier":                   {map[string]string{tier + "s/nodelist": "x"}, "0-1|||2-3|"},
		"nodes that cannot be numbers": {map[string]string{node + "has_memory": "all"}, "has_memory"},
	} {
		host := fstest.MapFS{}
		for _, files := range []map[string]string{plain, c.files} {
			for file, text := range files {
				if host[file] = (&fstest.MapFile{Data: []byte(text)}); text == "-" {
					delete(host, file)
				}
			}
		}
		m, err := sysfs.ReadMemories(host)
		got := fmt.Sprintf("%s|%s|%s|%s|%s", m.Of[0], m.Of[1], m.Of[2], m.Untold, m.Movable)
		if err != nil && strings.Contains(err.Error(), c.want) {
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, c.want)
		}
	}
}
