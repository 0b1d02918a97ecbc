package cgroup

import (
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

// The I/O weight of a group that is yet to be made goes to the file that it will have.
func TestIOWeightOfNewGroup(t *testing.T) {
	t.Parallel()
	with := func(l fakekernel.Layout, weights string) fakekernel.Layout {
		l.Weights = weights
		return l
	}
	for name, tt := range map[string]struct {
		layout     fakekernel.Layout
		file, text string // "" is refused
		beside     bool   // a group that shows it is there
		scheduler  string
	}{
		"v1":                {fakekernel.V1(), "blkio.bfq.weight", "250", false, ""},
		"v1, beside":        {fakekernel.V1(), "blkio.bfq.weight", "250", true, ""},
		"v1, none":          {with(fakekernel.V1(), "none"), "", "", false, ""},
		"v1, none, beside":  {with(fakekernel.V1(), "none"), "", "", true, "mq-deadline [bfq]"},
		"v2":                {fakekernel.V2(), "io.weight", "default 250", false, ""},
		"v2, beside":        {fakekernel.V2(), "io.weight", "default 250", true, ""},
		"v2, BFQ":           {with(fakekernel.V2(), "bfq"), "io.bfq.weight", "default 250", false, "mq-deadline [bfq] none"},
		"v2, BFQ not used":  {with(fakekernel.V2(), "bfq"), "io.bfq.weight", "default 250", false, "[none] mq-deadline bfq"},
		"v2, BFQ beside":    {with(fakekernel.V2(), "bfq"), "io.bfq.weight", "default 250", true, ""},
		"v2, none":          {with(fakekernel.V2(), "none"), "", "", false, "[none] mq-deadline"},
		"v2, none, beside":  {with(fakekernel.V2(), "none"), "", "", true, "[none] mq-deadline"},
		"hybrid with io v2": {fakekernel.Hybrid(), "io.weight", "default 250", false, ""},
	} {
		s := fakeSite(t, tt.layout)
		if tt.scheduler != "" {
			if err := s.fake.Put("sys/block/sda/queue/scheduler", tt.scheduler); err != nil {
				t.Fatal(err)
			}
		}
		if tt.beside {
			plan, err := s.base.Child("beside/it").Create()
			s.apply(t, plan, err)
		}
		weighNewGroup(t, name, s, tt.file, tt.text)
	}
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		s := realSite(t, 1)
		p, err := s.base.part(IO)
		if err != nil {
			t.Skip(err)
		}
		probe := s.base.Child(s.name + "-probe")
		plan, err := probe.Create()
		undo := s.apply(t, plan, err)
		i := slices.IndexFunc([]string{"blkio.weight", "blkio.bfq.weight"}, func(f string) bool { return s.host.exists(probe.dir(p) + "/" + f) })
		if err := undo(); err != nil {
			t.Fatal(err)
		}
		if i < 0 {
			weighNewGroup(t, "real", s, "", "")
		} else {
			weighNewGroup(t, "real", s, []string{"blkio.weight", "blkio.bfq.weight"}[i], []string{"1000", "250"}[i])
		}
	})
}

func weighNewGroup(t *testing.T, name string, s site, file, text string) {
	t.Helper()
	g := s.base.Child(path.Join("deep-"+s.name, s.name))
	plan, err := g.Create()
	if err != nil {
		t.Fatal(err)
	}
	weights, err := g.Set(Limits{IOWeight: 250})
	if file == "" {
		var no *kernel.NotSupportedError
		if !errors.As(err, &no) || !strings.Contains(no.Feature, "io controller") || !strings.Contains(no.Remedy, "BFQ") || !strings.Contains(no.Reason, "weight") {
			t.Errorf("%s: %v, %v", name, weights, err)
		}
		return
	}
	s.apply(t, append(plan, weights...), err)
	if got, _ := s.text(g, IO, file); got != text {
		t.Errorf("%s: %s is %q", name, file, got)
	}
}
