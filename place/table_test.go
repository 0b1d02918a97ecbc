package place

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestTableAgainstMap(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	var l table
	model := map[string]*Grant{}
	for range 4000 {
		g := &Grant{ID: fmt.Sprint(rng.IntN(400))}
		g.Request.ID = g.ID
		old, before := l, l.n
		if rng.IntN(3) == 0 {
			l = l.without(g)
			delete(model, g.ID)
		} else {
			l = l.with(g)
			model[g.ID] = g
		}
		if old.n != before || l.n != len(model) {
			t.Fatalf("%d grants, want %d", l.n, len(model))
		}
		if l.get(g.ID) != model[g.ID] {
			t.Fatalf("get %s: not what was put", g.ID)
		}
	}
	var ids, want []string
	for g := range l.all() {
		ids = append(ids, g.ID)
	}
	for id := range model {
		want = append(want, id)
	}
	slices.Sort(want)
	if !slices.Equal(ids, want) {
		t.Errorf("order %v, want %v", ids, want)
	}
}
